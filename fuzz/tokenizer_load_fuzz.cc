// Files of tokenizers: any bytes are either refused or a tokenizer that encodes and decodes without harm.
#include <cstdlib>

#include "millrace/tokenizer/formats/load.h"
#include "millrace/tokenizer/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  auto tokenizer = tokenizer::Load({reinterpret_cast<const std::byte*>(data), size}, "gpt2");
  if (!tokenizer) return 0;
  std::vector<tokenizer::TokenId> ids;
  if (!(*tokenizer)->Encode("some text, \xE6\x95\xB0 \xFF", ids) || !(*tokenizer)->Decode(ids)) std::abort();
  return 0;
}
