#include "millrace/train/ranks/share_text.h"

#include <ATen/ATen.h>

#include <utility>

namespace millrace::train {

Result<std::string> ShareText(engine::Collective& group, std::string text, int root) {
  if (group.size() == 1) return text;
  const at::Tensor size = at::scalar_tensor(static_cast<std::int64_t>(text.size()), at::kLong);
  MR_TRY(group.Broadcast(size, root));
  text.resize(static_cast<std::size_t>(size.item<std::int64_t>()));
  if (!text.empty()) MR_TRY(group.Broadcast(at::from_blob(text.data(), size.item<std::int64_t>(), at::kByte), root));
  return text;
}

}  // namespace millrace::train
