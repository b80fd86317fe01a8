package schema

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// nodeJSON is the compact form of a node on the wire and in table properties.
type nodeJSON struct {
	Name     string   `json:"name"`
	Number   int32    `json:"no,omitempty"`
	Source   string   `json:"src,omitempty"`
	Aliases  []string `json:"aliases,omitempty"`
	FieldID  int32    `json:"id,omitempty"`
	Type     string   `json:"type"`
	Required bool     `json:"required,omitempty"`
	Doc      string   `json:"doc,omitempty"`
	Kids     []*Node  `json:"kids,omitempty"`
}

type schemaJSON struct {
	Columns []*Node  `json:"columns"`
	LastID  int32    `json:"last_id,omitempty"`
	Ignored []string `json:"ignored,omitempty"`
}

// MarshalJSON writes the node compactly: type in Iceberg's notation, zero values
// left out.
func (n *Node) MarshalJSON() ([]byte, error) {
	return json.Marshal(nodeJSON{
		Name: n.Name, Number: n.Number, Source: n.Source, Aliases: n.Aliases, FieldID: n.FieldID, Type: n.Type.String(),
		Required: n.Required, Doc: n.Doc, Kids: n.Kids,
	})
}

// UnmarshalJSON reads what MarshalJSON writes. Unknown keys are refused: they
// would mean a newer writer whose meaning we cannot keep.
func (n *Node) UnmarshalJSON(b []byte) error {
	var j nodeJSON
	if err := decodeStrict(b, &j); err != nil {
		return fmt.Errorf("reading schema node: %w", err)
	}
	t, err := ParseType(j.Type)
	if err != nil {
		return fmt.Errorf("reading schema node %q: %w", j.Name, err)
	}
	*n = Node{
		Name: j.Name, Number: j.Number, Source: j.Source, Aliases: j.Aliases, FieldID: j.FieldID, Type: t,
		Required: j.Required, Doc: j.Doc, Kids: j.Kids,
	}
	return nil
}

// MarshalJSON writes the schema compactly.
func (s *Schema) MarshalJSON() ([]byte, error) {
	columns := s.Columns
	if columns == nil {
		columns = []*Node{}
	}
	return json.Marshal(schemaJSON{Columns: columns, LastID: s.LastID, Ignored: s.Ignored})
}

// UnmarshalJSON reads what MarshalJSON writes and validates the tree.
func (s *Schema) UnmarshalJSON(b []byte) error {
	var j schemaJSON
	if err := decodeStrict(b, &j); err != nil {
		return fmt.Errorf("reading schema: %w", err)
	}
	read := &Schema{Columns: j.Columns, LastID: j.LastID, Ignored: j.Ignored}
	var missing bool
	read.walkNil(func() { missing = true })
	if missing {
		return fmt.Errorf("reading schema: a column is null")
	}
	if err := read.Validate(); err != nil {
		return fmt.Errorf("reading schema: %w", err)
	}
	*s = *read
	return nil
}

func (s *Schema) walkNil(found func()) {
	var look func(nodes []*Node)
	look = func(nodes []*Node) {
		for _, n := range nodes {
			if n == nil {
				found()
				continue
			}
			look(n.Kids)
		}
	}
	look(s.Columns)
}

func decodeStrict(b []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// Fingerprint is a stable hash (32 hex digits) over names, field ids, numbers
// and sources, types, presence and nesting, in order. Docs, LastID and Ignored do not count: they
// change nothing about how rows are written or read.
func (s *Schema) Fingerprint() string {
	h := sha256.New()
	buf := []byte("icestream schema 1\n")
	buf = appendNodes(buf, s.Columns)
	h.Write(buf)
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func appendNodes(b []byte, nodes []*Node) []byte {
	b = binary.AppendUvarint(b, uint64(len(nodes)))
	for _, n := range nodes {
		b = binary.AppendUvarint(b, uint64(len(n.Name)))
		b = append(b, n.Name...)
		b = binary.AppendVarint(b, int64(n.Number))
		b = binary.AppendVarint(b, int64(n.FieldID))
		t := n.Type.String()
		b = binary.AppendUvarint(b, uint64(len(t)))
		b = append(b, t...)
		switch { // bit 0: required, bit 1: a source follows
		case n.Source != "":
			b = append(b, 2+flag(n.Required))
			b = binary.AppendUvarint(b, uint64(len(n.Source)))
			b = append(b, n.Source...)
		default:
			b = append(b, flag(n.Required))
		}
		b = appendNodes(b, n.Kids)
	}
	return b
}

func flag(set bool) byte {
	if set {
		return 1
	}
	return 0
}
