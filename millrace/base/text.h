// Conversions of text: sizes and durations, suggestions for misspelled names, splitting, percent-encoding, UTF-8.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace {

/// Parses a size: "512MiB", "8M", "1.5GB", "4096". K, M, G, T and KiB… are powers of 1024. KB, MB… are powers of 1000.
/// Errors: kInvalidArgument.
Result<std::uint64_t> ParseBytes(std::string_view text);
/// Parses a duration: "250ms", "10s", "5m", "2h", "1d". Errors: kInvalidArgument.
Result<Duration> ParseDuration(std::string_view text);
std::string FormatBytes(std::uint64_t bytes);   ///< "12.3 MB" (powers of 1000)
std::string FormatDuration(Duration duration);  ///< "1.2 s", "3m05s"
std::string FormatCount(std::uint64_t count);   ///< "12,345,678"

/// Returns the candidate with the smallest edit distance to `name`. Returns "" if even that one changes too many
/// letters to be a typing error.
std::string_view NearestName(std::string_view name, std::span<const std::string_view> candidates);
/// Returns `unknown key "lerning_rate"; did you mean "learning_rate"?`.
std::string UnknownName(std::string_view kind, std::string_view name, std::span<const std::string_view> candidates);

std::vector<std::string_view> Split(std::string_view text, char separator);
std::string_view Trim(std::string_view text);
std::string ToLower(std::string_view text);  ///< ASCII only
/// Percent-encodes `text` as S3 requires (RFC 3986). '/' stays as it is if `keep_slash`.
std::string PercentEncode(std::string_view text, bool keep_slash);
Result<std::string> PercentDecode(std::string_view text, bool plus_is_space = false);
bool IsValidUtf8(std::string_view text);

}  // namespace millrace
