#include "millrace/train/ranks/rank_group.h"

#include <algorithm>
#include <cstring>

namespace millrace::train {
namespace {

class RankGroup final : public checkpoint::RankExchange {
 public:
  explicit RankGroup(std::unique_ptr<engine::Collective> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  Result<std::vector<std::string>> Gather(std::string mine) override {
    const auto ranks = static_cast<std::size_t>(size());
    std::vector<std::int64_t> sizes(ranks);
    const at::Tensor all_sizes = at::from_blob(sizes.data(), {size()}, at::kLong);
    MR_TRY(group_->AllGather(all_sizes, at::scalar_tensor(static_cast<std::int64_t>(mine.size()), at::kLong)));
    const std::int64_t most = std::ranges::max(sizes);
    if (most == 0) return std::vector<std::string>(rank() == 0 ? ranks : 0);
    const at::Tensor padded = at::zeros({most}, at::kByte);
    std::memcpy(padded.data_ptr(), mine.data(), mine.size());
    const at::Tensor all = at::empty({size() * most}, at::kByte);
    MR_TRY(group_->AllGather(all, padded));
    std::vector<std::string> strings;
    if (rank() != 0) return strings;
    for (std::size_t i = 0; i < ranks; ++i) {
      strings.emplace_back(static_cast<const char*>(all.data_ptr()) + i * most, static_cast<std::size_t>(sizes[i]));
    }
    return strings;
  }

  Result<std::string> Broadcast(std::string from_rank_0) override {
    at::Tensor size = at::scalar_tensor(static_cast<std::int64_t>(from_rank_0.size()), at::kLong);
    MR_TRY(group_->Broadcast(size, 0));
    from_rank_0.resize(static_cast<std::size_t>(size.item<std::int64_t>()));
    if (from_rank_0.empty()) return from_rank_0;
    const at::Tensor bytes = at::from_blob(from_rank_0.data(), {size.item<std::int64_t>()}, at::kByte);
    MR_TRY(group_->Broadcast(bytes, 0));
    return from_rank_0;
  }

 private:
  const std::unique_ptr<engine::Collective> group_;
};

}  // namespace

std::shared_ptr<checkpoint::RankExchange> MakeRankGroup(std::unique_ptr<engine::Collective> group) {
  return std::make_shared<RankGroup>(std::move(group));
}

}  // namespace millrace::train
