"""Protobuf files that a schema may import without a reference in the registry. Only the parts needed to read values.

The files of Protobuf itself (`google/protobuf/`), of Google's common types (`google/type/`), and of Confluent
(`confluent/type/`).
"""

from __future__ import annotations

# The parts of descriptor.proto that say how messages are encoded.
DESCRIPTOR = """
syntax = "proto2"; package google.protobuf;
message FileDescriptorSet { repeated FileDescriptorProto file = 1; }
message FileDescriptorProto {
  optional string name = 1; optional string package = 2; repeated string dependency = 3;
  repeated DescriptorProto message_type = 4; repeated EnumDescriptorProto enum_type = 5;
  optional FileOptions options = 8; optional string syntax = 12;
}
message DescriptorProto {
  optional string name = 1; repeated FieldDescriptorProto field = 2; repeated DescriptorProto nested_type = 3;
  repeated EnumDescriptorProto enum_type = 4; optional MessageOptions options = 7;
}
message FieldDescriptorProto {
  optional string name = 1; optional int32 number = 3; optional int32 label = 4; optional int32 type = 5;
  optional string type_name = 6; optional bytes default_value = 7; optional FieldOptions options = 8;
  optional int32 oneof_index = 9; optional bool proto3_optional = 17;
}
message EnumDescriptorProto {
  optional string name = 1; repeated EnumValueDescriptorProto value = 2; optional EnumOptions options = 3;
}
message EnumValueDescriptorProto { optional string name = 1; optional int32 number = 2; }
message FileOptions { optional FeatureSet features = 50; }
message MessageOptions { optional bool map_entry = 7; }
message FieldOptions { optional bool packed = 2; optional FeatureSet features = 21; }
message EnumOptions { optional FeatureSet features = 7; }
message FeatureSet {
  enum Presence { EXPLICIT = 1; IMPLICIT = 2; LEGACY_REQUIRED = 3; }
  enum EnumType { OPEN = 1; CLOSED = 2; }
  enum Repeated { PACKED = 1; EXPANDED = 2; }
  enum Encoding { LENGTH_PREFIXED = 1; DELIMITED = 2; }
  enum Utf8 { VERIFY = 2; NONE = 3; }
  optional Presence field_presence = 1; optional EnumType enum_type = 2; optional Repeated repeated_field_encoding = 3;
  optional Utf8 utf8_validation = 4; optional Encoding message_encoding = 5;
}
"""

_PROTOBUF = """
any.proto: message Any { string type_url = 1; bytes value = 2; }
duration.proto: message Duration { int64 seconds = 1; int32 nanos = 2; }
timestamp.proto: message Timestamp { int64 seconds = 1; int32 nanos = 2; }
empty.proto: message Empty { }
field_mask.proto: message FieldMask { repeated string paths = 1; }
source_context.proto: message SourceContext { string file_name = 1; }
wrappers.proto: message DoubleValue { double value = 1; } message FloatValue { float value = 1; }
 message Int64Value { int64 value = 1; } message UInt64Value { uint64 value = 1; }
 message Int32Value { int32 value = 1; } message UInt32Value { uint32 value = 1; }
 message BoolValue { bool value = 1; } message StringValue { string value = 1; } message BytesValue { bytes value = 1; }
struct.proto: message Struct { map<string, Value> fields = 1; }
 message Value { oneof kind { NullValue null_value = 1; double number_value = 2; string string_value = 3;
  bool bool_value = 4; Struct struct_value = 5; ListValue list_value = 6; } }
 enum NullValue { NULL_VALUE = 0; } message ListValue { repeated Value values = 1; }
"""

_TYPES = """
date.proto: message Date { int32 year = 1; int32 month = 2; int32 day = 3; }
timeofday.proto: message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }
datetime.proto: message DateTime { int32 year = 1; int32 month = 2; int32 day = 3; int32 hours = 4; int32 minutes = 5;
  int32 seconds = 6; int32 nanos = 7;
  oneof time_offset { google.protobuf.Duration utc_offset = 8; TimeZone time_zone = 9; } }
 message TimeZone { string id = 1; string version = 2; }
money.proto: message Money { string currency_code = 1; int64 units = 2; int32 nanos = 3; }
latlng.proto: message LatLng { double latitude = 1; double longitude = 2; }
fraction.proto: message Fraction { int64 numerator = 1; int64 denominator = 2; }
interval.proto: message Interval { google.protobuf.Timestamp start_time = 1; google.protobuf.Timestamp end_time = 2; }
decimal.proto: message Decimal { string value = 1; }
color.proto: message Color { float red = 1; float green = 2; float blue = 3; google.protobuf.FloatValue alpha = 4; }
quaternion.proto: message Quaternion { double x = 1; double y = 2; double z = 3; double w = 4; }
dayofweek.proto: enum DayOfWeek { DAY_OF_WEEK_UNSPECIFIED = 0; MONDAY = 1; TUESDAY = 2; WEDNESDAY = 3; THURSDAY = 4;
  FRIDAY = 5; SATURDAY = 6; SUNDAY = 7; }
month.proto: enum Month { MONTH_UNSPECIFIED = 0; JANUARY = 1; FEBRUARY = 2; MARCH = 3; APRIL = 4; MAY = 5; JUNE = 6;
  JULY = 7; AUGUST = 8; SEPTEMBER = 9; OCTOBER = 10; NOVEMBER = 11; DECEMBER = 12; }
"""

_CONFLUENT = """
decimal.proto: message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
"""

# Imported by all files but those of Protobuf itself.
_IMPORTS = ("google/protobuf/duration.proto", "google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto")


def _files(folder: str, package: str, texts: str) -> dict[str, str]:
    """Return files by path. A line of `texts` is `NAME: TEXT`, or after a space more text of the same file."""
    imports = "" if package == "google.protobuf" else "".join(f'import "{name}"; ' for name in _IMPORTS)
    files: dict[str, str] = {}
    name = ""
    for line in texts.strip().splitlines():
        if not line.startswith(" "):
            name, _, line = line.partition(": ")
            files[f"{folder}/{name}"] = f'syntax = "proto3"; package {package}; {imports}'
        files[f"{folder}/{name}"] += line
    return files


KNOWN_FILES: dict[str, str] = {
    "google/protobuf/descriptor.proto": DESCRIPTOR,
    **_files("google/protobuf", "google.protobuf", _PROTOBUF),
    **_files("google/type", "google.type", _TYPES),
    **_files("confluent/type", "confluent.type", _CONFLUENT),
}
