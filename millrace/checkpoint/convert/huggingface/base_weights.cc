#include "millrace/checkpoint/convert/huggingface/base_weights.h"

#include <algorithm>

namespace millrace::checkpoint {

std::optional<std::string> FindWeight(const Manifest& base, const std::string& name) {
  const std::size_t dot = name.find('.');
  for (const std::string& candidate : {name, name.substr(dot == name.npos ? 0 : dot + 1)}) {
    std::string full = std::string(kModelGroup) + candidate;
    if (base.tensors.contains(full)) return full;
  }
  return std::nullopt;
}

bool StoresTransposed(const Manifest& base, const std::string& weight) {
  const Json* list = JsonFind(base.meta, kMetaTransposed);
  return list != nullptr && list->is_array() && std::ranges::find(*list, Json(weight)) != list->end();
}

}  // namespace millrace::checkpoint
