// One schema that says what two say.
#pragma once

#include <string>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::serve {

/// Returns whether a keyword of JSON schema says nothing about which values are allowed.
bool IsAnnotation(const std::string& keyword);

/// Returns a schema of the values that both schemas allow, without annotations. Both are objects. Schemas that stand
/// at the same place in both become an allOf of the two.
/// Errors: kUnsupported, naming the keyword, if no keyword says what both say together; kInvalidArgument if no value is
/// allowed. `where` is the place in messages.
Result<Json> MergeSchemas(const Json& one, const Json& other, const std::string& where);

}  // namespace millrace::serve
