#include "millrace/collectives/testing/counting.h"

#include <utility>

namespace millrace::engine {
namespace {

class CountingCollective : public Collective {
 public:
  CountingCollective(std::unique_ptr<Collective> inner, std::shared_ptr<Traffic> traffic)
      : inner_(std::move(inner)), traffic_(std::move(traffic)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Operation StartAllReduce(at::Tensor tensor, Reduction reduction) override {
    traffic_->Add(Traffic::kAllReduce, tensor.nbytes());
    return inner_->StartAllReduce(std::move(tensor), reduction);
  }
  Operation StartAllGather(at::Tensor all, at::Tensor mine) override {
    traffic_->Add(Traffic::kAllGather, all.nbytes());
    return inner_->StartAllGather(std::move(all), std::move(mine));
  }
  Operation StartReduceScatter(at::Tensor mine, at::Tensor all, Reduction reduction) override {
    traffic_->Add(Traffic::kReduceScatter, all.nbytes());
    return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction);
  }
  Operation StartBroadcast(at::Tensor tensor, int root) override {
    traffic_->Add(Traffic::kBroadcast, tensor.nbytes());
    return inner_->StartBroadcast(std::move(tensor), root);
  }
  Operation StartSend(at::Tensor tensor, int to) override {
    traffic_->Add(Traffic::kSend, tensor.nbytes());
    return inner_->StartSend(std::move(tensor), to);
  }
  Operation StartReceive(at::Tensor tensor, int from) override {
    traffic_->Add(Traffic::kReceive, tensor.nbytes());
    return inner_->StartReceive(std::move(tensor), from);
  }

  void Abort(const Error& cause) override { inner_->Abort(cause); }

  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    return MakeCounting(MR_TRY(inner_->Split(std::move(name), members)), traffic_);
  }

 protected:
  const std::unique_ptr<Collective> inner_;

 private:
  const std::shared_ptr<Traffic> traffic_;
};

/// Returns a pointer that does not own.
std::shared_ptr<Traffic> Borrow(Traffic& traffic) { return {std::shared_ptr<void>(), &traffic}; }

class GroupCountingCollective final : public CountingCollective {
 public:
  GroupCountingCollective(std::unique_ptr<Collective> inner, GroupTraffic& groups)
      : CountingCollective(std::move(inner), Borrow(groups[""])), groups_(groups) {}

  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    auto traffic = Borrow(groups_[name]);
    return MakeCounting(MR_TRY(inner_->Split(std::move(name), members)), std::move(traffic));
  }

 private:
  GroupTraffic& groups_;
};

}  // namespace

std::unique_ptr<Collective> MakeCounting(std::unique_ptr<Collective> inner, std::shared_ptr<Traffic> traffic) {
  return std::make_unique<CountingCollective>(std::move(inner), std::move(traffic));
}

std::unique_ptr<Collective> MakeCountingByGroup(std::unique_ptr<Collective> inner, GroupTraffic& traffic) {
  return std::make_unique<GroupCountingCollective>(std::move(inner), traffic);
}

}  // namespace millrace::engine
