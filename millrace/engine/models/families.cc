#include "millrace/engine/models/families.h"

#include <array>

#include "millrace/engine/models/bert/bert.h"
#include "millrace/engine/models/gpt2/gpt2.h"
#include "millrace/engine/models/gptj/gptj.h"
#include "millrace/engine/models/llama/llama.h"

namespace millrace::engine {

std::span<const ModelFamily> ModelFamilies() {
  static const std::array kFamilies = {LlamaFamily(), Gpt2Family(), GptjFamily(), BertFamily()};
  return kFamilies;
}

}  // namespace millrace::engine
