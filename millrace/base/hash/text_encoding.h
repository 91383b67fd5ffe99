// Encodings of bytes as ASCII text: hexadecimal and base64.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/result.h"

namespace millrace {

std::string HexEncode(ByteSpan bytes);  ///< lower case
/// Accepts both cases. Errors: kInvalidArgument.
Result<std::vector<std::byte>> HexDecode(std::string_view text);
std::string Base64Encode(ByteSpan bytes);  ///< RFC 4648 section 4, with padding
/// Requires padding and allows no white space. Errors: kInvalidArgument.
Result<std::vector<std::byte>> Base64Decode(std::string_view text);

}  // namespace millrace
