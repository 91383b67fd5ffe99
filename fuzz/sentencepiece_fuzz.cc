// The reader of model files: any bytes are either refused or have pieces.
#include <cstdlib>

#include "millrace/tokenizer/sentencepiece_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  auto traits = tokenizer::ReadSentencePieceTraits({reinterpret_cast<const std::byte*>(data), size});
  if (traits && traits->pieces <= 0) std::abort();
  return 0;
}
