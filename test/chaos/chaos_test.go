//go:build synctests

package chaos

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	first = flag.Uint64("first", 1, "first seed")
	seeds = flag.Uint64("seeds", 6, "number of seeds")
	trace = flag.Bool("trace", false, "print the events of every seed, not only of one that fails")
	logs  = flag.Bool("logs", false, "print the services' logs with the events")
	until = flag.Bool("until-failure", false, "end with the first seed that fails")
)

// G1, G2, G3, G4, G5, G6, G9, G11: whatever fails, in whatever order, everything lands exactly once. All seeds of a process share one
// bubble, because codecs that the libraries keep for the whole process must not cross the border of one.
func TestEverySeedLandsExactlyOnce(t *testing.T) {
	root := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		for seed := *first; seed < *first+*seeds; seed++ {
			if !play(t, seed, filepath.Join(root, fmt.Sprint(seed))) && *until {
				return
			}
		}
	})
}

// play runs one seed and reports whether it held.
func play(t *testing.T, seed uint64, dir string) bool {
	require.NoError(t, os.Mkdir(dir, 0o755))
	fmt.Printf("seed %d begins\n", seed)
	w, err := newWorld(t.Context(), seed, dir)
	require.NoError(t, err)
	began := time.Now()
	err = w.drive()
	took := time.Since(began)
	if cerr := w.close(); err == nil && cerr != nil {
		err = cerr
	}
	if err != nil || *trace {
		fmt.Printf("%s\n", strings.Join(w.trace, "\n"))
		if *logs {
			fmt.Printf("log:\n%s\n", w.logs.text())
		}
	}
	if err != nil {
		fmt.Printf("seed %d FAILED: %v\n", seed, err)
		t.Errorf("seed %d: %v", seed, err)
		return false
	}
	fmt.Printf("seed %d held: %v of virtual time, %s\n", seed, took.Round(time.Second), w.book.summary())
	return true
}
