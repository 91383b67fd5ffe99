// The formats of strings that a JSON schema may name.
#pragma once

#include <optional>
#include <string_view>

namespace millrace::serve {

/// Returns the regular expression of all strings of a format of JSON schema (draft 2020-12), or of a part of them:
/// dates and times as RFC 3339 writes them with capital letters, lengths of host names counted by label alone, no
/// literal addresses behind the "@" of an e-mail address. Null: the format is unknown, or no regular expression says
/// it.
std::optional<std::string_view> RegexOfFormat(std::string_view format);

/// Returns whether a format only says how to show a value: any string has it.
bool IsFormatWithoutRule(std::string_view format);

}  // namespace millrace::serve
