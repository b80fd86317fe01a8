package registry

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/icestream/icestream/internal/devpeers"
)

const (
	money = "syntax = \"proto3\";\npackage shop;\nmessage Money { string currency = 1; int64 units = 2; }\n"
	order = "syntax = \"proto3\";\npackage shop;\nimport \"shop/money.proto\";\nimport \"google/protobuf/timestamp.proto\";\n" +
		"message Order { Money total = 1; google.protobuf.Timestamp at = 2; }\n"
)

func start(t *testing.T, file string) *Server {
	t.Helper()
	s, err := Start(Config{File: file})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func fresh(t *testing.T) *Server { return start(t, filepath.Join(t.TempDir(), "registry.json")) }

func call(t *testing.T, s *Server, method, path string, body any) (int, string) {
	t.Helper()
	data, err := json.Marshal(body)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL()+path, bytes.NewReader(data))
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(out)
}

func get(t *testing.T, s *Server, path string) map[string]any {
	t.Helper()
	code, body := call(t, s, http.MethodGet, path, nil)
	require.Equal(t, 200, code, body)
	var out map[string]any
	require.NoError(t, json.Unmarshal([]byte(body), &out))
	return out
}

func register(t *testing.T, s *Server, subject string, body schemaBody) int {
	t.Helper()
	code, answer := call(t, s, http.MethodPost, "/subjects/"+subject+"/versions", body)
	require.Equal(t, 200, code, answer)
	var out struct{ ID int }
	require.NoError(t, json.Unmarshal([]byte(answer), &out))
	return out.ID
}

func requireError(t *testing.T, want, status int, body string) {
	t.Helper()
	var e struct {
		Code    int    `json:"error_code"`
		Message string `json:"message"`
	}
	require.NoError(t, json.Unmarshal([]byte(body), &e), body)
	require.Equal(t, want, e.Code, body)
	require.NotEmpty(t, e.Message)
	if want > 999 {
		want /= 100
	}
	require.Equal(t, want, status)
}

func protobuf(text string, refs ...reference) schemaBody {
	return schemaBody{Schema: text, SchemaType: typeProtobuf, References: refs}
}

var moneyRef = reference{Name: "shop/money.proto", Subject: "money", Version: 1}

func TestIDsGoOnAfterARestart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sub", "registry.json")
	s, err := Start(Config{File: file})
	require.NoError(t, err)
	require.Equal(t, 1, register(t, s, "money", protobuf(money)))
	require.Equal(t, 2, register(t, s, "orders-value", protobuf(order, moneyRef)))
	require.Equal(t, 1, register(t, s, "money-copy", protobuf(money)), "same text in two subjects, one id")
	require.Equal(t, 2, register(t, s, "orders-value", protobuf(order, moneyRef)), "registering is idempotent")
	before := get(t, s, "/subjects/orders-value/versions/latest")
	require.NoError(t, s.Close())

	s = start(t, file)
	require.Equal(t, before, get(t, s, "/subjects/orders-value/versions/-1"))
	require.Equal(t, order, get(t, s, "/schemas/ids/2")["schema"])
	require.Equal(t, 3, register(t, s, "orders-value", protobuf("syntax = \"proto3\"; message M { int32 a = 1; }")))
	_, body := call(t, s, http.MethodGet, "/subjects/orders-value/versions", nil)
	require.JSONEq(t, "[1,2]", body)
}

func TestSchemasThatDoNotCompileGetNoID(t *testing.T) {
	s := fresh(t)
	register(t, s, "money", protobuf(money))
	for name, body := range map[string]schemaBody{
		"no proto":          protobuf("this is not proto"),
		"empty":             protobuf(""),
		"unknown import":    protobuf("syntax = \"proto3\"; import \"none.proto\"; message A {}"),
		"unknown type":      protobuf("syntax = \"proto3\"; message A { Missing m = 1; }"),
		"reference missing": protobuf(order),
		"version missing":   protobuf(order, reference{Name: "shop/money.proto", Subject: "money", Version: 9}),
		"avro":              {Schema: "{"},
		"avro type":         {Schema: `{"type":"record","name":"R","fields":[{"name":"a","type":"Missing"}]}`},
		"avro reference":    {Schema: `"string"`, References: []reference{{Name: "money", Subject: "money", Version: 1}}},
		"json":              {Schema: `"string"`, SchemaType: typeJSON},
		"json reference":    {Schema: `{}`, SchemaType: typeJSON, References: []reference{{Name: "money", Subject: "money", Version: 1}}},
		"type":              {Schema: "{}", SchemaType: "XML"},
	} {
		code, answer := call(t, s, http.MethodPost, "/subjects/x/versions", body)
		t.Log(name, answer)
		requireError(t, codeInvalidSchema, code, answer)
	}
	_, subjects := call(t, s, http.MethodGet, "/subjects", nil)
	require.JSONEq(t, `["money"]`, subjects)
}

func TestWellKnownImportsNeedNoReference(t *testing.T) {
	s := fresh(t)
	register(t, s, "x", protobuf(`syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
		import "google/type/date.proto"; import "google/protobuf/wrappers.proto";
		message A { confluent.type.Decimal d = 1 [(confluent.field_meta).doc = "x"]; google.type.Date e = 2; google.protobuf.StringValue f = 3; }`))
	register(t, s, "avro", schemaBody{Schema: `{"type":"string"}`})
	register(t, s, "json", schemaBody{Schema: `{}`, SchemaType: typeJSON})
	require.NotContains(t, get(t, s, "/schemas/ids/2"), "schemaType", "AVRO is the unspoken default")
}

func TestAvroReferencesAreNamedTypes(t *testing.T) {
	s := fresh(t)
	register(t, s, "city", schemaBody{Schema: `{"type":"enum","name":"shop.City","symbols":["ROME"]}`})
	city := reference{Name: "shop.City", Subject: "city", Version: 1}
	register(t, s, "address", schemaBody{Schema: `{"type":"record","name":"shop.Address","fields":[{"name":"city","type":"City"}]}`, References: []reference{city}})
	address := reference{Name: "shop.Address", Subject: "address", Version: 1}
	register(t, s, "order", schemaBody{
		Schema:     `{"type":"record","name":"shop.Order","fields":[{"name":"to","type":"Address"},{"name":"from","type":"City"}]}`,
		References: []reference{city, address},
	})
}

// The Python serializer sends descriptors whose fields have no JSON names.
func TestDescriptorsWithoutJSONNamesAreAccepted(t *testing.T) {
	s := fresh(t)
	id := register(t, s, "money", protobuf(money))
	raw, err := base64.StdEncoding.DecodeString(get(t, s, "/schemas/ids/1?format=serialized")["schema"].(string))
	require.NoError(t, err)
	file := new(descriptorpb.FileDescriptorProto)
	require.NoError(t, proto.Unmarshal(raw, file))
	require.Greater(t, len(file.GetMessageType()[0].GetField()), 1, "two nameless fields are needed to collide")
	dropJSONNames(file.GetMessageType())
	raw, err = proto.Marshal(file)
	require.NoError(t, err)
	require.Equal(t, id, register(t, s, "money", protobuf(base64.StdEncoding.EncodeToString(raw))))
}

func TestDescriptorFormMeansTheSameSchema(t *testing.T) {
	s := fresh(t)
	register(t, s, "money", protobuf(money))
	id := register(t, s, "orders-value", protobuf(order, moneyRef))
	serialized := get(t, s, "/schemas/ids/2?format=serialized")["schema"].(string)
	raw, err := base64.StdEncoding.DecodeString(serialized)
	require.NoError(t, err)
	file := new(descriptorpb.FileDescriptorProto)
	require.NoError(t, proto.Unmarshal(raw, file))
	require.Equal(t, "Order", file.GetMessageType()[0].GetName())
	require.Equal(t, []string{"shop/money.proto", "google/protobuf/timestamp.proto"}, file.GetDependency())

	require.Equal(t, id, register(t, s, "orders-value", protobuf(serialized, moneyRef)))
	code, body := call(t, s, http.MethodPost, "/subjects/orders-value", protobuf(serialized, moneyRef))
	require.Equal(t, 200, code, body)
	other := register(t, s, "descriptor-only", protobuf(serialized, moneyRef))
	require.Equal(t, serialized, get(t, s, "/subjects/descriptor-only/versions/1")["schema"])
	require.Equal(t, other, register(t, s, "descriptor-only", protobuf(order, moneyRef)))
}

func TestGUIDsFindSchemasByContent(t *testing.T) {
	s := fresh(t)
	register(t, s, "money", protobuf(money))
	guid := get(t, s, "/subjects/money/versions/1")["guid"].(string)
	require.Equal(t, guid, get(t, s, "/schemas/ids/1")["guid"])
	require.Equal(t, money, get(t, s, "/schemas/guids/"+guid)["schema"])
	_, ids := call(t, s, http.MethodGet, "/schemas/guids/"+guid+"/ids", nil)
	require.JSONEq(t, `[{"context":".","id":1}]`, ids)
	other := fresh(t)
	register(t, other, "filler", protobuf("syntax = \"proto3\"; message F {}"))
	register(t, other, "money", protobuf(money))
	require.Equal(t, guid, get(t, other, "/schemas/ids/2")["guid"])
}

func TestErrorsCarryTheRightCode(t *testing.T) {
	s := fresh(t)
	register(t, s, "money", protobuf(money))
	for _, c := range []struct {
		method, path string
		body         any
		code         int
	}{
		{"GET", "/subjects/none/versions", nil, codeSubjectNotFound},
		{"GET", "/subjects/none/versions/1", nil, codeSubjectNotFound},
		{"GET", "/subjects/money/versions/7", nil, codeVersionNotFound},
		{"GET", "/subjects/money/versions/abc", nil, codeInvalidVersion},
		{"GET", "/subjects/money/versions/0", nil, codeInvalidVersion},
		{"GET", "/schemas/ids/99", nil, codeSchemaNotFound},
		{"GET", "/schemas/guids/none", nil, codeSchemaNotFound},
		{"POST", "/subjects/none", protobuf(money), codeSubjectNotFound},
		{"POST", "/subjects/money", protobuf("syntax = \"proto3\"; message Z {}"), codeSchemaNotFound},
		{"POST", "/subjects/money/versions", "text", 422},
		{"DELETE", "/subjects/none", nil, codeSubjectNotFound},
		{"PUT", "/config", map[string]string{"compatibility": "BACKWARD"}, codeInvalidLevel},
		{"PUT", "/mode", map[string]string{"mode": "IMPORT"}, codeInvalidMode},
		{"GET", "/nothing", nil, 404},
	} {
		status, body := call(t, s, c.method, c.path, c.body)
		requireError(t, c.code, status, body)
	}
	require.Equal(t, "NONE", get(t, s, "/config")["compatibilityLevel"])
}

func TestDeletesAreTwoStepsAndKeepWhatIsReferenced(t *testing.T) {
	s := fresh(t)
	register(t, s, "money", protobuf(money))
	register(t, s, "orders-value", protobuf(order, moneyRef))
	_, users := call(t, s, http.MethodGet, "/subjects/money/versions/1/referencedby", nil)
	require.JSONEq(t, "[2]", users)
	expect := func(want int, path string) {
		t.Helper()
		status, body := call(t, s, http.MethodDelete, path, nil)
		if want == 200 {
			require.Equal(t, 200, status, body)
			return
		}
		requireError(t, want, status, body)
	}
	expect(codeReferenceExists, "/subjects/money/versions/1")
	expect(codeReferenceExists, "/subjects/money")
	expect(codeVersionNotSoftDeleted, "/subjects/orders-value/versions/1?permanent=true")
	expect(codeSubjectNotSoftDeleted, "/subjects/orders-value?permanent=true")
	expect(200, "/subjects/orders-value/versions/1")
	expect(codeVersionDeleted, "/subjects/orders-value/versions/1")
	expect(codeSubjectDeleted, "/subjects/orders-value")
	_, subjects := call(t, s, http.MethodGet, "/subjects?deleted=true", nil)
	require.JSONEq(t, `["money","orders-value"]`, subjects)
	require.Equal(t, order, get(t, s, "/schemas/ids/2")["schema"], "readable by id for ever")

	require.Equal(t, 2, register(t, s, "orders-value", protobuf(order, moneyRef)), "again, with the old id")
	require.InDelta(t, 2, get(t, s, "/subjects/orders-value/versions/latest")["version"], 0)
	expect(200, "/subjects/orders-value")
	expect(200, "/subjects/orders-value?permanent=true")
	expect(codeSubjectNotFound, "/subjects/orders-value")
	register(t, s, "orders-value", protobuf(order, moneyRef))
	require.InDelta(t, 3, get(t, s, "/subjects/orders-value/versions/latest")["version"], 0, "no number is given twice")
	expect(codeReferenceExists, "/subjects/money")
}

func TestReadOnlyModeRefusesWrites(t *testing.T) {
	s := fresh(t)
	code, _ := call(t, s, http.MethodPut, "/mode/money", map[string]string{"mode": "READONLY"})
	require.Equal(t, 200, code)
	code, body := call(t, s, http.MethodPost, "/subjects/money/versions", protobuf(money))
	requireError(t, codeReadOnly, code, body)
	register(t, s, "other", protobuf(money))
	code, _ = call(t, s, http.MethodDelete, "/mode/money", nil)
	require.Equal(t, 200, code)
	register(t, s, "money", protobuf(money))
}

func TestOrdinaryClientWorks(t *testing.T) {
	s := fresh(t)
	client, err := sr.NewClient(sr.URLs(s.URL()))
	require.NoError(t, err)
	made, err := client.CreateSchema(t.Context(), "money", sr.Schema{Schema: money, Type: sr.TypeProtobuf})
	require.NoError(t, err)
	require.Equal(t, 1, made.ID)
	pinned := []sr.SchemaReference{{Name: "shop/money.proto", Subject: "money", Version: 1}}
	made, err = client.CreateSchema(t.Context(), "orders-value", sr.Schema{Schema: order, Type: sr.TypeProtobuf, References: pinned})
	require.NoError(t, err)
	got, err := client.SchemaByID(t.Context(), made.ID)
	require.NoError(t, err)
	require.Equal(t, order, got.Schema)
	require.Equal(t, pinned, got.References)
	types, err := client.SupportedTypes(t.Context())
	require.NoError(t, err)
	require.Len(t, types, 3)
	_, err = client.SchemaByID(t.Context(), 77)
	var failed *sr.ResponseError
	require.ErrorAs(t, err, &failed)
	require.Equal(t, 40403, failed.ErrorCode)
}

func TestConcurrentRegistrationsGiveEachSchemaOneID(t *testing.T) {
	s := fresh(t)
	ids := make([]int, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() { ids[i] = register(t, s, "money", protobuf(money)) })
	}
	wg.Wait()
	for _, id := range ids {
		require.Equal(t, 1, id)
	}
}

func TestStartNamesWhatIsWrong(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	_, err = Start(Config{File: filepath.Join(t.TempDir(), "r.json"), Port: ln.Addr().(*net.TCPAddr).Port})
	require.ErrorIs(t, err, devpeers.ErrPortInUse)
	bad := filepath.Join(t.TempDir(), "r.json")
	require.NoError(t, os.WriteFile(bad, []byte("{"), 0o600))
	_, err = Start(Config{File: bad})
	require.ErrorContains(t, err, bad)
}
