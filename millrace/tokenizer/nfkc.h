// Unicode's compatible composed form, NFKC, as Hugging Face tokenizers make it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/tokenizer/code_point_map.h"
#include "millrace/tokenizer/nfc.h"

namespace millrace::tokenizer {

extern const std::uint32_t kCompatible[];
extern const std::size_t kCompatibleCount;

/// NFC of a text in which characters that are others in another form (ﬁ, ①, ｱ) are taken apart. Immutable; any thread.
class Nfkc {
 public:
  Nfkc();

  const Nfc& nfc() const { return nfc_; }
  /// The text itself where it is so already, else `buffer`.
  std::string_view Normalize(std::string_view text, std::string& buffer) const;

 private:
  Nfc nfc_;
  CodePointMap<std::uint16_t> at_;  ///< in texts_; 0: stands for itself
  std::vector<std::string> texts_{""};
};

}  // namespace millrace::tokenizer
