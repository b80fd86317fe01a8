package registry

import (
	"regexp"
	"strings"
)

// The compiler reads the source of editions up to 2023. A file of edition 2024 means
// the same on the wire: its new features are about names, visibility and generated
// code, and the defaults of the others are those of 2023. So it is read as one of
// 2023 with what the compiler does not know taken out. Serialized descriptors need
// none of this.

// edition2024 finds the declaration among comments and blanks at the start.
var edition2024 = regexp.MustCompile(`^(?:\s|//[^\n]*\n|/\*(?s:.*?)\*/|\x{FEFF})*edition\s*=\s*["']2024["']\s*;`)

// only2024 finds, beside comments and strings (which it finds first, so that nothing
// inside of them is taken for code), what only edition 2024 has.
var only2024 = regexp.MustCompile(`//[^\n]*|/\*(?s:.*?)\*/|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|` +
	`\b(?:export|local)\s+(?:message|enum)\s+\w+|` +
	`\bimport(?:\s+option\b)|` +
	`\boption\s+features\s*\.\s*(?:enforce_naming_style|default_symbol_visibility)\s*=\s*\w+\s*;`)

// readable gives the source in the form that the compiler reads. Lines stay where
// they were.
func readable(text string) string {
	at := edition2024.FindStringIndex(text)
	if at == nil {
		return text
	}
	head, body := text[:at[1]], text[at[1]:]
	year := strings.LastIndex(head, "2024")
	head = head[:year] + "2023" + head[year+len("2024"):]
	body = only2024.ReplaceAllStringFunc(body, func(found string) string {
		switch {
		case strings.HasPrefix(found, "export"), strings.HasPrefix(found, "local"):
			word := found[:strings.IndexAny(found, " \t\r\n")]
			return blanked(word) + found[len(word):]
		case strings.HasPrefix(found, "import"):
			return strings.Replace(found, "option", "      ", 1)
		case strings.HasPrefix(found, "option"):
			return blanked(found)
		default:
			return found
		}
	})
	return head + body
}
