package ident

import "strings"

// QuarantineSuffix is what the name of a quarantine table adds to that of its main
// table. No table of a pipeline may have it.
const QuarantineSuffix = "__quarantine"

// MainTable is the main table of which a table is the quarantine, by its name.
func MainTable(name string) (string, bool) {
	main, ok := strings.CutSuffix(name, QuarantineSuffix)
	return main, ok && main != "" && !strings.HasSuffix(main, ".")
}
