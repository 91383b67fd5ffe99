// Strings as Python sees them: sequences of characters, not of bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"
#include "millrace/tokenizer/unicode/utf8.h"

namespace millrace::jinja {

/// Returns the character at byte `at`. A byte that begins none is a character of its own.
inline tokenizer::DecodedCharacter CharacterAt(std::string_view text, std::size_t at) {
  return tokenizer::DecodeUtf8(text.data() + at, text.data() + text.size());
}
// The functions below count their work, and stop early with any result where the rendering may not do more (Work).

/// Returns whether each byte is a character of ASCII.
bool IsAscii(std::string_view text);
std::int64_t CountCharacters(std::string_view text);
/// Returns the byte at which each character begins, and the size.
std::vector<std::size_t> CharacterStarts(std::string_view text);

/// Return where `wanted` begins the first or last time in the text; npos if it is not there. Their time grows with the
/// size of the text, whatever the two hold, or is counted.
std::size_t FindFirst(std::string_view text, std::string_view wanted);
std::size_t FindLast(std::string_view text, std::string_view wanted);

/// The ends of a text at which Strip() takes characters away.
enum class Ends { kBoth, kLeft, kRight };
/// Removes white space as str.strip() does, or the characters of `characters`.
std::string_view Strip(std::string_view text, Ends ends, std::optional<std::string_view> characters = {});

/// Return the text with other letters. Errors: kUnsupported for letters beyond ASCII; kResourceExhausted.
Result<std::string> Upper(std::string_view text);
Result<std::string> Lower(std::string_view text);
Result<std::string> Capitalize(std::string_view text);
/// Makes the first letter of each word a capital. A word begins behind each of `breaks`, and of everything that is no
/// letter if there are none.
Result<std::string> Title(std::string_view text, std::string_view breaks);

/// Returns the text with each `from` replaced, or only the first `most` of them. An empty `from` is between all
/// characters.
std::string Replace(std::string_view text, std::string_view from, std::string_view to, std::int64_t most);
/// Splits at white space, as str.split() does, at most `most` times; below 0: everywhere.
std::vector<std::string> SplitWords(std::string_view text, std::int64_t most, bool from_right);
/// Splits at a separator that is not empty.
std::vector<std::string> SplitAt(std::string_view text, std::string_view separator, std::int64_t most, bool from_right);
std::vector<std::string> SplitLines(std::string_view text, bool keep_ends);

}  // namespace millrace::jinja
