// Makes text of strangers harmless for terminals: keys, names, messages of servers, answers of models.
#pragma once

#include <string>
#include <string_view>

namespace millrace {

/// Returns the text with every character replaced that a terminal would obey or that would hide what the text is:
///
/// - C0 controls but tab and line feed, and DEL: their picture in Unicode's block "Control Pictures"
/// - C1 controls (U+0080 to U+009F), embeddings, overrides and isolates of direction, line and paragraph separators,
///   bytes that are no UTF-8: U+FFFD
///
/// So no escape sequence reaches the terminal. "\r\n" becomes "\n".
std::string HarmlessText(std::string_view text);

/// Returns true for the characters, beside C0 controls, that HarmlessText replaces.
bool IsDeceptive(char32_t c);

/// Reads the UTF-8 character that begins at `at`. Returns its code point and sets `length` to its bytes. A byte that is
/// no UTF-8 is U+FFFD of length 1. REQUIRES: at < text.size().
char32_t CharacterAt(std::string_view text, std::size_t at, std::size_t& length);

}  // namespace millrace
