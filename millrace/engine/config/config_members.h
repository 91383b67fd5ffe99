// Members of config.json that no family here reads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::engine {

/// Checks that a config.json asks for nothing that only other families of models compute, such as capped logits or
/// experts. Such a member may have the value that changes nothing.
/// Errors: kUnsupported, with the member and its value.
Status CheckForeignMembers(const Json& config, std::string_view what);

/// Returns the members that neither a family here nor transformers' base class has, in their order. Imports and tuned
/// models keep them. A program that knows them may compute another model. Empty if the configuration does not parse.
std::vector<std::string> UnknownMembers(const Json& config);

/// Returns a sentence that names the unknown members for the user; empty if there are none.
std::string UnknownMembersNote(const Json& config);

}  // namespace millrace::engine
