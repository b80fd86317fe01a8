package replica

import "github.com/icestream/icestream/internal/obs"

// Defs returns the metrics of this package.
func Defs() []obs.Def {
	return []obs.Def{
		appendsDef(), rowsDef(), bytesDef(), imagesDef(), connectedDef(), hotRowsDef(), hotBytesDef(), lagDef(), ageDef(),
	}
}

func counter(name, help string) obs.Def {
	return obs.Def{Name: "icestream_readstate_" + name, Help: help, Kind: obs.KindCounter, Labels: []string{"table"}}
}

func gauge(name, help string) obs.Def {
	return obs.Def{Name: "icestream_readstate_" + name, Help: help, Kind: obs.KindGauge, Labels: []string{"table"}}
}

func appendsDef() obs.Def {
	return counter("followed_appends_total", "Append events taken in from the buffer.")
}

func rowsDef() obs.Def { return counter("followed_rows_total", "Rows in the append events taken in.") }

func bytesDef() obs.Def {
	return counter("followed_bytes_total", "Bytes of the append events taken in.")
}

func imagesDef() obs.Def {
	return counter("images_total", "State images taken in; more than one per restart of a buffer means that the replica is cut off for being slow.")
}

func connectedDef() obs.Def {
	return gauge("follower_connected", "1 while the stream from the buffer is open; at 0 reads are answered from the last known position.")
}

func hotRowsDef() obs.Def { return gauge("hot_rows", "Hot rows that the replica holds.") }

func hotBytesDef() obs.Def { return gauge("hot_bytes", "Bytes of hot rows that the replica holds.") }

func lagDef() obs.Def {
	return gauge("lag_records", "Records between the visible positions and the ends of the topic partitions, as ingest last said.")
}

func ageDef() obs.Def {
	return gauge("newest_age_seconds", "Time since the newest visible record was made; 0 while none is known.")
}
