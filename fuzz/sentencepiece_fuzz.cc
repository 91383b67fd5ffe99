// The reader of model files: any bytes are either refused or have pieces.
#include <cstdlib>

#include "millrace/tokenizer/sentencepiece/sentencepiece_model.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  auto model = tokenizer::ReadSentencePieceModel({reinterpret_cast<const std::byte*>(data), size});
  if (model && model->pieces.empty()) std::abort();
  return 0;
}
