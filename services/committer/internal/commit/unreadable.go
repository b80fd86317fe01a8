package commit

// atEntries is where a partition stands still because of an entry of its log.
const atEntries area = "entries"

// Unreadable notes that a partition stands still, since an entry of its log cannot
// be made rows; nil notes that none does. The others go on.
func (t *Table) Unreadable(err error) {
	if err == nil {
		t.status.fine(atEntries)
		return
	}
	t.status.failed(atEntries, err)
}
