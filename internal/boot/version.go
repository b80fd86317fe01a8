package boot

import (
	"cmp"
	"runtime"
	"runtime/debug"
)

// Build is what a binary knows of its making. What the toolchain did not record is
// empty.
type Build struct {
	Version  string `json:"version"`            // of the module; (devel) where it has none
	Revision string `json:"revision,omitempty"` // of the source
	Time     string `json:"time,omitempty"`     // of that revision, RFC 3339
	Modified bool   `json:"modified"`           // the source differed from the revision
	Go       string `json:"go"`
	Platform string `json:"platform"` // GOOS/GOARCH
}

// ThisBuild is that of the running binary.
func ThisBuild() Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildOf(info)
}

func buildOf(info *debug.BuildInfo) Build {
	b := Build{Version: cmp.Or(info.Main.Version, "(devel)"), Go: cmp.Or(info.GoVersion, runtime.Version()), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// Version is the version of the module, or else the revision, and that of Go.
func Version() string { return ThisBuild().short() }

func (b Build) short() string {
	v := b.Version
	if v == "(devel)" && b.Revision != "" {
		v = b.Revision[:min(12, len(b.Revision))]
	}
	return v + " " + b.Go
}
