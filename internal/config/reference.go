package config

import (
	"bytes"
	"fmt"
	"strings"
	"time"
)

// Fields describes every setting, in the order of the reference page: sections first, then `defaults`, then
// `pipelines[]`.
func Fields() []Field {
	c := Default()
	out := describe(settings(), c, "", true)
	out = append(out, describe(optionSettings(), &c.Defaults, "defaults.", true)...)
	blank := newPipeline()
	out = append(out, describe(pipelineSettings(), &blank, "pipelines[].", false)...)
	for _, f := range describe(optionSettings(), &c.Defaults, "pipelines[].", false) {
		f.Default = "that of defaults"
		out = append(out, f)
	}
	return out
}

func describe[T any](table []setting[T], root *T, prefix string, overridable bool) []Field {
	var out []Field
	for _, s := range table {
		ptr := s.at(root)
		_, secret := ptr.(*Secret)
		_, properties := ptr.(*Properties)
		f := Field{
			Path: prefix + s.path(), Type: typeName(ptr), Default: render(ptr), Doc: s.doc, Example: s.example,
			Secret: secret || properties, Values: s.values,
		}
		if overridable && !properties {
			f.Env = envName(f.Path)
		}
		out = append(out, f)
	}
	return out
}

func typeName(ptr any) string {
	switch ptr.(type) {
	case *string:
		return "text"
	case *int, *int64:
		return "number"
	case *bool:
		return "true or false"
	case *Size:
		return "size"
	case *Percent:
		return "share"
	case *time.Duration:
		return "duration"
	case *[]string:
		return "list"
	case *Secret:
		return "secret"
	case *Properties:
		return "mapping"
	case *Start:
		return "start"
	case *Partition:
		return "transforms"
	case *Sort:
		return "sort order"
	}
	return fmt.Sprintf("%T", ptr)
}

const referenceHead = `# Configuration

This page is generated from the table of settings in ` + "`internal/config`" + `; change it there.

One YAML file, ` + "`icestream.yaml`" + `, is read by every service and by the CLI. It is strict: unknown keys and values without
their unit are errors, and all errors are reported at once with file, line and column. Precedence: flags
(` + "`--set PATH=VALUE`" + `), environment, file, defaults.

- **size**: a number with B, KiB, MiB, GiB, TiB (powers of 1024) or kB, MB, GB, TB (powers of 1000).
- **duration**: a number with ms, s, m, h or d; also ` + "`1h30m`" + `.
- **list**: ` + "`[a, b]`" + ` or ` + "`a, b`" + `.
- **secret**: never printed. Any value may be ` + "`${env:NAME}`" + ` or ` + "`${file:PATH}`" + ` (relative to the file's folder); ` + "`$${`" + `
  stands for a plain ` + "`${`" + `.
- Settings outside of ` + "`pipelines`" + ` can be given by the environment: the path in upper case, every other character as ` + "`_`" + `,
  after ` + "`ICESTREAM_`" + `. So ` + "`limits.hot.bytes`" + ` is ` + "`ICESTREAM_LIMITS_HOT_BYTES`" + `.

`

// Reference returns the page docs/reference/config.md.
func Reference() []byte {
	var b bytes.Buffer
	b.WriteString(referenceHead)
	last := ""
	for _, f := range Fields() {
		section, _, found := strings.Cut(f.Path, ".")
		if !found {
			section = "general"
		}
		if section != last {
			if last != "" {
				b.WriteString("\n")
			}
			fmt.Fprintf(&b, "## %s\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n", section)
			last = section
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Path, referenceType(f), code(f), referenceDoc(f))
	}
	return b.Bytes()
}

func referenceType(f Field) string {
	if len(f.Values) == 0 {
		return f.Type
	}
	words := make([]string, len(f.Values))
	for i, v := range f.Values {
		words[i] = "`" + v + "`"
	}
	if f.Type == "list" {
		return "list of " + strings.Join(words, ", ")
	}
	return strings.Join(words, ", ")
}

func code(f Field) string {
	switch f.Default {
	case "":
		return ""
	case "that of defaults":
		return "`defaults`"
	}
	return "`" + f.Default + "`"
}

func referenceDoc(f Field) string {
	doc := f.Doc
	if f.Example != "" {
		doc += " Example: `" + f.Example + "`."
	}
	return strings.ReplaceAll(doc, "|", "\\|")
}
