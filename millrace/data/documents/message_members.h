// The members that records and messages of conversations have, and what they say. Includes simdjson, which is heavy:
// only for .cc files.
#pragma once

#include <simdjson.h>

#include <expected>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "millrace/data/records/broken_reason.h"

namespace millrace::data {

inline constexpr std::string_view kUserRole = "user", kAssistantRole = "assistant", kSystemRole = "system";

/// The most names of ignored members in a message to the user.
inline constexpr std::size_t kMaxIgnored = 20;

/// Returns the role that a record names in another way: "human", "gpt".
std::string_view RoleOf(std::string_view said);

/// Finds a member that is a text. Returns false if there is none.
bool FindText(simdjson::dom::object fields, std::string_view name, std::string_view& text);

/// Returns true for null, and for a text, list or object without content. Columns of a table have such values in rows
/// that lack the member.
bool IsEmpty(simdjson::dom::element value);

/// Returns whether an answer with these members is trained, or why they are no weight.
std::expected<bool, BrokenReason> IsTrained(simdjson::dom::object fields);

/// Appends the texts of a content's parts. Returns why if one of them is no text.
std::optional<BrokenReason> JoinParts(simdjson::dom::array parts, std::string& whole);

/// Returns the members of a record that say something beside its messages: "tools", "images" and others.
std::span<const std::string_view> RecordMembers();
/// Returns the reason by which a record with a member is broken. REQUIRES: RecordMembers() has `name`.
BrokenReason UnrenderedRecordReason(std::string_view name);
/// Returns the reason by which a message with a member is broken if a layout does not write the member. Nothing for
/// members that are no part of conversations.
std::optional<BrokenReason> UnrenderedReason(std::string_view name);

}  // namespace millrace::data
