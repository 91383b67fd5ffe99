#include "millrace/base/hash/text_encoding.h"

#include <openssl/evp.h>

namespace millrace {
namespace {

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string HexEncode(ByteSpan bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (std::byte b : bytes) {
    text += kDigits[std::to_integer<int>(b) >> 4];
    text += kDigits[std::to_integer<int>(b) & 15];
  }
  return text;
}

Result<std::vector<std::byte>> HexDecode(std::string_view text) {
  std::vector<std::byte> bytes;
  bytes.reserve(text.size() / 2);
  if (text.size() % 2 != 0)
    return Fail(Code::kInvalidArgument, "hexadecimal text has an odd number of digits; expected two for each byte");
  for (std::size_t i = 0; i < text.size(); i += 2) {
    int high = HexValue(text[i]), low = HexValue(text[i + 1]);
    if (high < 0 || low < 0) {
      return Fail(Code::kInvalidArgument, "not a hexadecimal digit at position {}; expected one of 0-9, a-f and A-F",
                  i);
    }
    bytes.push_back(static_cast<std::byte>(high * 16 + low));
  }
  return bytes;
}

std::string Base64Encode(ByteSpan bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // the library adds a NUL
  int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                             reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<std::size_t>(size));
  return text;
}

Result<std::vector<std::byte>> Base64Decode(std::string_view text) {
  std::vector<std::byte> bytes(text.size() / 4 * 3);
  int size = text.size() % 4 != 0
                 ? -1
                 : EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()));
  // The library skips white space around the text, which RFC 4648 does not allow.
  bool has_space = text.find_first_of(" \t\r\n") != std::string_view::npos;
  std::size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  if (size < 0 || has_space || text.substr(0, text.size() - padding).find('=') != std::string_view::npos)
    return Fail(Code::kInvalidArgument, "not base64 text; expected that of RFC 4648, without spaces");
  bytes.resize(static_cast<std::size_t>(size) - padding);
  return bytes;
}

}  // namespace millrace
