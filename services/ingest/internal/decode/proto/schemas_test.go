package proto

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/icestream/icestream/internal/schema"
	"github.com/icestream/icestream/services/ingest/internal/decode/registry"
)

// everyKind has each scalar kind alone, repeated, optional, in oneofs and maps.
const everyKind = `
syntax = "proto3";
package rules;
import "google/protobuf/timestamp.proto";
import "google/protobuf/duration.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/empty.proto";
import "google/protobuf/any.proto";
enum E { Z = 0; A = 1; B = 2; FAR = 1000; NEG = -1; }
message Leaf {
  string s = 1; repeated int32 r = 2; optional int64 o = 3;
  oneof k { string x = 4; Deep y = 5; int32 z = 6; }
  map<string, int64> m = 7;
}
message Deep { repeated Leaf2 l = 1; string t = 2; map<int32, Leaf2> mm = 3; }
message Leaf2 { string a = 1; repeated string b = 2; double d = 3; E e = 4; map<string, string> n = 5; }
message Nothing {}
message R {
  int32 a = 1; int64 b = 2; uint32 c = 3; uint64 d = 4; sint32 e = 5; sint64 f = 6; fixed32 g = 7; fixed64 h = 8;
  sfixed32 i = 9; sfixed64 j = 10; float k = 11; double l = 12; bool m = 13; string n = 14; bytes o = 15; E p = 16;
  Leaf q = 17; google.protobuf.Timestamp t = 18; google.protobuf.Duration dur = 19; Nothing nothing = 20;
  repeated int32 ra = 21; repeated int64 rb = 22; repeated uint32 rc = 23; repeated uint64 rd = 24; repeated sint32 re = 25;
  repeated sint64 rf = 26; repeated fixed32 rg = 27; repeated fixed64 rh = 28; repeated sfixed32 ri = 29;
  repeated sfixed64 rj = 30; repeated float rk = 31; repeated double rl = 32; repeated bool rm = 33; repeated string rn = 34;
  repeated bytes ro = 35; repeated E rp = 36; repeated Leaf rq = 37; repeated google.protobuf.Timestamp rt = 38;
  repeated Nothing rnothing = 39;
  optional int32 oa = 41; optional string ob = 42; optional bool oc = 43; optional bytes od = 44; optional E oe = 45;
  optional uint64 of = 46;
  oneof u {
    string ua = 51; Leaf ub = 52; int64 uc = 53; bool ud = 54; Leaf2 ue = 55; google.protobuf.Timestamp uf = 56;
    Nothing ug = 57; google.protobuf.Int32Value uh = 58; fixed64 ui = 59;
  }
  map<string, string> ma = 61; map<int32, Leaf2> mb = 62; map<bool, int64> mc = 63; map<uint64, bytes> md = 64;
  map<string, E> me = 65; map<sint64, google.protobuf.Timestamp> mf = 66; map<string, Leaf> mg = 67;
  map<string, Nothing> mh = 68; map<fixed32, google.protobuf.StringValue> mi = 69;
  google.protobuf.DoubleValue wa = 71; google.protobuf.FloatValue wb = 72; google.protobuf.Int64Value wc = 73;
  google.protobuf.UInt64Value wd = 74; google.protobuf.Int32Value we = 75; google.protobuf.UInt32Value wf = 76;
  google.protobuf.BoolValue wg = 77; google.protobuf.StringValue wh = 78; google.protobuf.BytesValue wi = 79;
  repeated google.protobuf.Int64Value rw = 80; google.protobuf.Any any = 81; google.protobuf.Empty empty = 82;
  string far = 5000;
}`

const oldSyntax = `
syntax = "proto2";
package rules2;
message G2 {
  optional group Grp = 1 { optional int32 a = 1; repeated string b = 2; optional string c = 3; }
  repeated group RG = 2 { optional int64 x = 1; optional group In = 2 { optional string s = 1; } }
  optional string s = 3;
  repeated int32 up = 4;
  repeated int32 pk = 5 [packed = true];
  optional int32 def = 6 [default = 7];
  oneof o { group Og = 8 { optional int32 q = 1; } int32 oi = 10; }
  optional Req req = 11;
  repeated Req reqs = 12;
  map<string, Req> reqm = 13;
  optional C c = 14;
  repeated C cs = 15 [packed = true];
}
enum C { ONE = 1; TWO = 2; }
message Req { required int32 must = 1; optional string may = 2; }
`

const edition = `
edition = "2023";
package rules3;
message Ed {
  int32 explicit = 1;
  int32 implicit = 2 [features.field_presence = IMPLICIT];
  string checked = 3;
  string unchecked = 4 [features.utf8_validation = NONE];
  Sub delimited = 5 [features.message_encoding = DELIMITED];
  repeated Sub many = 6 [features.message_encoding = DELIMITED];
  repeated sint32 expanded = 7 [features.repeated_field_encoding = EXPANDED];
  Shut shut = 8;
  map<string, Sub> m = 9;
}
message Sub { int64 v = 1; string s = 2; }
enum Shut { option features.enum_type = CLOSED; ONE = 1; TWO = 2; }
`

// special has the messages that become one value; what becomes JSON is named so.
const special = `
syntax = "proto3";
package special;
import "google/protobuf/struct.proto";
import "google/protobuf/field_mask.proto";
import "google/type/date.proto";
import "google/type/timeofday.proto";
import "google/type/decimal.proto";
message Tree { int32 v = 1; Tree json_left = 2; repeated Tree json_many = 3; map<string, Tree> json_by = 4; }
message S {
  google.protobuf.Struct json_s = 1; google.protobuf.Value json_v = 2; repeated google.protobuf.Value json_r = 3;
  map<int32, google.protobuf.Struct> json_m = 4; Tree tree = 5; repeated Tree trees = 6; S json_self = 7;
  google.protobuf.FieldMask mask = 8; repeated google.protobuf.FieldMask masks = 9;
  google.type.Date date = 10; repeated google.type.Date dates = 11; map<int32, google.type.Date> datem = 12;
  google.type.TimeOfDay tod = 13; google.type.Decimal dec = 14; map<bool, google.type.Decimal> decm = 15;
  oneof o { google.protobuf.Value json_o = 16; google.type.Date od = 17; Tree ot = 18; google.protobuf.FieldMask om = 19; string os = 20; }
}
`

// Shapes of the speed notes.
const shapes = `
syntax = "proto3";
package speed;
import "google/protobuf/timestamp.proto";
enum Status { STATUS_UNSPECIFIED = 0; STATUS_OPEN = 1; STATUS_CLOSED = 2; STATUS_FAILED = 3; }
message Event {
  string event_id = 1; string user_id = 2; string kind = 3; int64 seq = 4; int32 code = 5; uint64 session = 6;
  sint64 delta = 7; double amount = 8; double score = 9; bool ok = 10; Status status = 11; google.protobuf.Timestamp ts = 12;
}
message LineItem { string sku = 1; int32 qty = 2; double price = 3; optional double discount = 4; string title = 5; }
message Address { string street = 1; string city = 2; string zip = 3; string country = 4; double lat = 5; double lon = 6; }
message Card { string network = 1; string last4 = 2; int32 exp = 3; }
message Order {
  string order_id = 1; int64 customer_id = 2; google.protobuf.Timestamp created = 3; repeated LineItem items = 4;
  map<string, string> attrs = 5; optional string note = 6; optional int32 priority = 7;
  oneof payment { Card card = 8; string iban = 9; int64 voucher = 10; }
  Address ship = 11; repeated int32 tags = 12; repeated string labels = 13;
}
`

func compileFile(t testing.TB, text string) protoreflect.FileDescriptor {
	t.Helper()
	file, err := registry.Compile(t.Context(), "test.proto", text, nil)
	require.NoError(t, err)
	return file
}

func messageOf(t testing.TB, text, name string) protoreflect.MessageDescriptor {
	t.Helper()
	md := compileFile(t, text).Messages().ByName(protoreflect.Name(name))
	require.NotNil(t, md, name)
	return md
}

// targetOf is the schema of a table made for the type.
func targetOf(t testing.TB, md protoreflect.MessageDescriptor, opts Options) *schema.Schema {
	t.Helper()
	candidate, err := Candidate(md, opts)
	require.NoError(t, err)
	target := schema.Evolve(&schema.Schema{}, candidate, nil, schema.Options{FormatVersion: 3})
	require.False(t, target.Refused())
	return target.Schema
}

func planOf(t testing.TB, md protoreflect.MessageDescriptor) *Plan {
	t.Helper()
	plan, err := Compile(md, targetOf(t, md, Options{}), Options{})
	require.NoError(t, err)
	return plan
}
