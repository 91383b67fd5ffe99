#include "millrace/data/batch/stage_trace.h"

namespace millrace::data {

std::string_view LoadStageName(LoadStage stage) {
  constexpr std::string_view kNames[] = {"network", "parse", "tokenize", "pack"};
  return kNames[static_cast<std::size_t>(stage)];
}

}  // namespace millrace::data
