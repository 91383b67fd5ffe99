#include "millrace/collectives/testing/counting.h"

#include <utility>

namespace millrace::collectives {
namespace {

class CountingCollective : public Collective {
 public:
  CountingCollective(std::unique_ptr<Collective> inner, std::shared_ptr<Traffic> traffic)
      : inner_(std::move(inner)), traffic_(std::move(traffic)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    traffic_->Add(Traffic::kAllReduce, elements.bytes());
    return inner_->StartAllReduce(std::move(elements), reduction);
  }
  Operation StartAllGather(Elements all, Elements mine) override {
    traffic_->Add(Traffic::kAllGather, all.bytes());
    return inner_->StartAllGather(std::move(all), std::move(mine));
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    traffic_->Add(Traffic::kReduceScatter, all.bytes());
    return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction);
  }
  Operation StartBroadcast(Elements elements, int root) override {
    traffic_->Add(Traffic::kBroadcast, elements.bytes());
    return inner_->StartBroadcast(std::move(elements), root);
  }
  Operation StartSend(Elements elements, int to) override {
    traffic_->Add(Traffic::kSend, elements.bytes());
    return inner_->StartSend(std::move(elements), to);
  }
  Operation StartReceive(Elements elements, int from) override {
    traffic_->Add(Traffic::kReceive, elements.bytes());
    return inner_->StartReceive(std::move(elements), from);
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

}  // namespace millrace::collectives
