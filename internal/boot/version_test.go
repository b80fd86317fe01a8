package boot

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABinaryKnowsWhatItWasMadeOf(t *testing.T) {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	for _, c := range []struct {
		info  debug.BuildInfo
		want  Build
		short string
	}{
		{debug.BuildInfo{}, Build{Version: "(devel)", Go: runtime.Version(), Platform: platform}, "(devel) " + runtime.Version()},
		{
			debug.BuildInfo{GoVersion: "go1.30", Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{
				{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.time", Value: "2026-11-30T17:00:00Z"}, {Key: "vcs.modified", Value: "true"},
			}},
			Build{Version: "(devel)", Revision: "0123456789abcdef", Time: "2026-11-30T17:00:00Z", Modified: true, Go: "go1.30", Platform: platform},
			"0123456789ab go1.30",
		},
		{
			debug.BuildInfo{GoVersion: "go1.30", Main: debug.Module{Version: "v1.2.3"}, Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "01"}, {Key: "vcs.modified", Value: "false"}}},
			Build{Version: "v1.2.3", Revision: "01", Go: "go1.30", Platform: platform},
			"v1.2.3 go1.30",
		},
	} {
		require.Equal(t, c.want, buildOf(&c.info))
		require.Equal(t, c.short, c.want.short())
	}
}
