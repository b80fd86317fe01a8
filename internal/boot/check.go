package boot

import "github.com/icestream/icestream/internal/fault"

// Check is the result of reaching one peer, for `icestream check`.
type Check struct {
	Peer    string `json:"peer"` // kafka, registry, catalog
	Address string `json:"address"`
	OK      bool   `json:"ok"`
	Detail  string `json:"detail"` // what was found, or what is wrong and what to do
}

// Checked makes the result of a check: detail when err is nil, else the error.
func Checked(peer, address, detail string, err error) Check {
	if err != nil {
		return Check{Peer: peer, Address: address, Detail: fault.Describe(err)}
	}
	return Check{Peer: peer, Address: address, OK: true, Detail: detail}
}
