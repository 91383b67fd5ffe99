#include "millrace/tokenizer/sentencepiece/character_map.h"

#include <cstring>

namespace millrace::tokenizer {
namespace {

// A unit of darts-clone: bit 8 says that a key ends below it, bits 10 up (shifted by 8 more if bit 9 is set) are the
// offset of its children, bits 0-7 its label; a value's unit has bit 31 set.
std::uint32_t Offset(std::uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
std::uint32_t Label(std::uint32_t unit) { return unit & ((1u << 31) | 0xFF); }
bool HasLeaf(std::uint32_t unit) { return (unit >> 8 & 1) != 0; }

}  // namespace

Result<CharacterMap> CharacterMap::Parse(ByteSpan bytes) {
  const std::size_t trie_bytes = bytes.size() > 4 ? LoadLittle<std::uint32_t>(bytes.data()) : SIZE_MAX;
  if (trie_bytes >= bytes.size() - 4 || trie_bytes < 1024 || trie_bytes % 4 != 0 || bytes.back() != std::byte{0}) {
    return Fail(Code::kInvalidArgument,
                "the tokenizer's character map is broken; copy the tokenizer's file again from where it was published");
  }
  CharacterMap made;
  made.units_.resize(trie_bytes / 4);
  std::memcpy(made.units_.data(), bytes.data() + 4, trie_bytes);
  made.replacements_ = AsText(bytes.subspan(4 + trie_bytes));
  return made;
}

std::size_t CharacterMap::Find(std::string_view text, bool first, std::string_view& replacement) const {
  std::size_t found = 0;
  std::uint32_t at = Offset(units_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto byte = static_cast<std::uint8_t>(text[i]);
    at ^= byte;
    if (at >= units_.size() || Label(units_[at]) != byte) break;
    bool ends = HasLeaf(units_[at]);
    at ^= Offset(units_[at]);
    if (!ends || at >= units_.size()) continue;
    std::uint32_t value = units_[at] & 0x7FFFFFFF;
    if (value >= replacements_.size()) continue;
    found = i + 1;
    replacement = replacements_.c_str() + value;
    if (first) break;
  }
  return found;
}

}  // namespace millrace::tokenizer
