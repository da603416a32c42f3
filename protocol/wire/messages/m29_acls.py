"""DescribeAcls, CreateAcls and DeleteAcls (keys 29, 30, 31): bindings of principals, resources and operations.

Resource types, pattern types, operations and permissions are numbers; `protocol.admin.acls` has their names.
"""

from __future__ import annotations

from protocol.wire.schema import THROTTLE_TIME, Array, Field, Route, Struct, api

ACL_FILTER = Struct(
    Field("resource_type_filter", "int8"),
    Field("resource_name_filter", "string", nullable_since=0),
    Field("pattern_type_filter", "int8", default=3),
    Field("principal_filter", "string", nullable_since=0),
    Field("host_filter", "string", nullable_since=0),
    Field("operation", "int8"),
    Field("permission_type", "int8"),
)

ACL_DESCRIPTION = Struct(
    Field("principal", "string"), Field("host", "string"), Field("operation", "int8"), Field("permission_type", "int8")
)

DESCRIBE_ACLS_RESOURCE = Struct(
    Field("resource_type", "int8"),
    Field("resource_name", "string"),
    Field("pattern_type", "int8", default=3),
    Field("acls", Array(ACL_DESCRIPTION)),
)

DESCRIBE_ACLS_RESPONSE = Struct(
    THROTTLE_TIME,
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("resources", Array(DESCRIBE_ACLS_RESOURCE)),
)

DESCRIBE_ACLS = api(29, "DescribeAcls", ACL_FILTER, DESCRIBE_ACLS_RESPONSE, "1-3", "2+", Route.ANY)

ACL_CREATION = Struct(
    Field("resource_type", "int8"),
    Field("resource_name", "string"),
    Field("resource_pattern_type", "int8", default=3),
    Field("principal", "string"),
    Field("host", "string"),
    Field("operation", "int8"),
    Field("permission_type", "int8"),
)

CREATE_ACLS_REQUEST = Struct(Field("creations", Array(ACL_CREATION)))

ACL_CREATION_RESULT = Struct(Field("error_code", "int16"), Field("error_message", "string", nullable_since=0))

CREATE_ACLS_RESPONSE = Struct(THROTTLE_TIME, Field("results", Array(ACL_CREATION_RESULT)))

CREATE_ACLS = api(30, "CreateAcls", CREATE_ACLS_REQUEST, CREATE_ACLS_RESPONSE, "1-3", "2+", Route.CONTROLLER)

DELETE_ACLS_REQUEST = Struct(Field("filters", Array(ACL_FILTER)))

DELETE_ACLS_MATCHING_ACL = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("resource_type", "int8"),
    Field("resource_name", "string"),
    Field("pattern_type", "int8", default=3),
    Field("principal", "string"),
    Field("host", "string"),
    Field("operation", "int8"),
    Field("permission_type", "int8"),
)

DELETE_ACLS_FILTER_RESULT = Struct(
    Field("error_code", "int16"),
    Field("error_message", "string", nullable_since=0),
    Field("matching_acls", Array(DELETE_ACLS_MATCHING_ACL)),
)

DELETE_ACLS_RESPONSE = Struct(THROTTLE_TIME, Field("filter_results", Array(DELETE_ACLS_FILTER_RESULT)))

DELETE_ACLS = api(31, "DeleteAcls", DELETE_ACLS_REQUEST, DELETE_ACLS_RESPONSE, "1-3", "2+", Route.CONTROLLER)
