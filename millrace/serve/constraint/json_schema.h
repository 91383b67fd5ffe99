// JSON, and JSON of a schema, as grammars.
#pragma once

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/serve/constraint/grammar.h"

namespace millrace::serve {

/// Returns a grammar of objects in JSON with any members.
Grammar JsonObjectGrammar();

/// Returns a grammar of texts that a JSON schema (draft 2020-12) describes: each of them satisfies it, and README.md
/// says which others there are. Objects have the members that the schema names, in its order. White space is at most 16
/// characters in one place.
/// Supported are type, enum, const, properties, required, additionalProperties, and without properties one of
/// patternProperties, propertyNames, minProperties, maxProperties; items, prefixItems, minItems, maxItems; minLength,
/// maxLength, pattern, format; minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf; anyOf, oneOf, allOf,
/// $ref into the schema, and annotations. Errors: kUnsupported with the keyword and its place; kInvalidArgument for a
/// broken schema.
Result<Grammar> JsonSchemaGrammar(const Json& schema);

}  // namespace millrace::serve
