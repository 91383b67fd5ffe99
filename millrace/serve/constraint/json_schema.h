// JSON, and JSON of a schema, as grammars.
#pragma once

#include "millrace/base/json.h"
#include "millrace/base/result.h"
#include "millrace/serve/constraint/grammar.h"

namespace millrace::serve {

/// Returns a grammar of objects in JSON with any members.
Grammar JsonObjectGrammar();

/// Returns a grammar of the texts that a JSON schema (draft 2020-12) describes. Objects have the members that the
/// schema names, in its order, and no others. White space is at most 16 characters in one place.
/// Supported are type, enum, const, properties, required, additionalProperties (false, or none named), items,
/// prefixItems, minItems, maxItems, minLength, maxLength, pattern, anyOf, oneOf, allOf of one, $ref into the schema,
/// and annotations. Errors: kUnsupported with the keyword and its place; kInvalidArgument for a broken schema.
Result<Grammar> JsonSchemaGrammar(const Json& schema);

}  // namespace millrace::serve
