// The reasons for which a line is not a usable record.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::data {

/// The longest record, in bytes. Longer lines are kTooLong. 16 MiB is a guess.
inline constexpr std::uint64_t kMaxRecordBytes = 16ull << 20;

enum class BrokenReason : std::uint8_t {
  kNotJson,
  kNotUtf8,
  kMissingField,
  kNotText,
  kEmpty,
  kTooLong,
  kNotChat,
  kNotClass
};
inline constexpr int kBrokenReasons = 8;
std::string_view BrokenReasonName(BrokenReason reason);  ///< "not_json", as in docs/formats/index.md
/// Errors: kInvalidArgument if no reason has that name.
Result<BrokenReason> ParseBrokenReason(std::string_view name);

}  // namespace millrace::data
