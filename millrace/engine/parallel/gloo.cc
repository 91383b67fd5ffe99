// Collective over PyTorch's ProcessGroupGloo.
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <charconv>
#include <cstdlib>

#include "millrace/engine/errors.h"
#include "millrace/engine/parallel/collective.h"

namespace millrace::engine {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

Error Lost(std::string_view operation, const Error& cause) {
  return cause.WithCode(Code::kUnavailable)
      .Context(fmt::format("{}: another rank is gone or does not answer", operation));
}

Status Wait(std::string_view operation, const Work& work) {
  const Status done = CatchTorch("gloo", [&] { work->wait(); });
  if (!done) return Fail(Lost(operation, done.error()));
  return {};
}

class PendingWork final : public Collective::Pending {
 public:
  explicit PendingWork(Work work) : work_(std::move(work)) {}
  explicit PendingWork(Error error) : failed_(Fail(std::move(error))) {}
  ~PendingWork() override {
    if (work_) (void)Wait();
  }
  Status Wait() override {
    if (!work_) return failed_;
    const Work work = std::exchange(work_, Work());
    return failed_ = millrace::engine::Wait("all-reduce", work);
  }

 private:
  Work work_;
  Status failed_;
};

class Gloo final : public Collective {
 public:
  Gloo(c10::intrusive_ptr<c10d::Store> store, std::string name, RankInfo info, Duration timeout)
      : store_(std::move(store)), info_(std::move(info)), timeout_(timeout) {
    auto options =
        c10d::ProcessGroupGloo::Options::create(std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
    const bool loopback = info_.master_address == "127.0.0.1" || info_.master_address == "localhost";
    options->devices.push_back(loopback ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                        : c10d::ProcessGroupGloo::createDefaultDevice());
    options->threads = 2;
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::PrefixStore>(std::move(name), store_), info_.rank, info_.size, options);
  }

  int rank() const override { return info_.rank; }
  int size() const override { return info_.size; }

  std::unique_ptr<Pending> StartAllReduce(at::Tensor tensor) override {
    auto work = CatchTorch("all-reduce", [&] {
      std::vector<at::Tensor> tensors{std::move(tensor)};
      return group_->allreduce(tensors);
    });
    if (!work) return std::make_unique<PendingWork>(Lost("all-reduce", work.error()));
    return std::make_unique<PendingWork>(*std::move(work));
  }

  Result<std::vector<at::Tensor>> AllGather(const at::Tensor& mine) override {
    std::vector<std::vector<at::Tensor>> all(1);
    for (int i = 0; i < size(); ++i) all[0].push_back(at::empty_like(mine));
    MR_TRY(Run("all-gather", [&] {
      std::vector<at::Tensor> inputs{mine};
      return group_->allgather(all, inputs);
    }));
    return std::move(all[0]);
  }

  /// Gloo has no reduce-scatter. Every rank computes the whole sum and keeps its part.
  Result<at::Tensor> ReduceScatter(const at::Tensor& all) override {
    const at::Tensor sum = all.clone();
    MR_TRY(AllReduce(sum));
    const std::int64_t part = all.size(0) / size();
    return sum.narrow(0, rank() * part, part).clone();
  }

  Status Broadcast(at::Tensor tensor, int root) override {
    return Run("broadcast", [&] {
      std::vector<at::Tensor> tensors{std::move(tensor)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      return group_->broadcast(tensors, options);
    });
  }
  Status Send(const at::Tensor& tensor, int to) override {
    return Run("send", [&] {
      std::vector<at::Tensor> tensors{tensor};
      return group_->send(tensors, to, 0);
    });
  }
  Status Receive(at::Tensor tensor, int from) override {
    return Run("receive", [&] {
      std::vector<at::Tensor> tensors{std::move(tensor)};
      return group_->recv(tensors, from, 0);
    });
  }
  Status Barrier() override { return AllReduce(at::zeros({1})); }
  Result<std::unique_ptr<Collective>> Duplicate(std::string name) override {
    return CatchTorch("connecting ranks", [&]() -> std::unique_ptr<Collective> {
      return std::make_unique<Gloo>(store_, std::move(name), info_, timeout_);
    });
  }

 private:
  template <class Start>
  Status Run(std::string_view operation, Start&& start) {
    auto work = CatchTorch(operation, std::forward<Start>(start));
    if (!work) return Fail(Lost(operation, work.error()));
    return Wait(operation, *work);
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const RankInfo info_;
  const Duration timeout_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

Result<int> EnvironmentInt(const char* name, int absent, int least, int most) {
  const char* text = std::getenv(name);
  if (text == nullptr) return absent;
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc() || end != view.data() + view.size() || value < least || value > most) {
    return Fail(Code::kInvalidArgument, "{}={} in the environment: expected a number in {}…{}", name, view, least,
                most);
  }
  return value;
}

}  // namespace

Result<RankInfo> RankInfo::FromEnvironment() {
  RankInfo info;
  info.size = MR_TRY(EnvironmentInt("WORLD_SIZE", 1, 1, 1 << 20));
  info.rank = MR_TRY(EnvironmentInt("RANK", 0, 0, info.size - 1));
  info.local_size = MR_TRY(EnvironmentInt("LOCAL_WORLD_SIZE", info.size, 1, info.size));
  info.local_rank = MR_TRY(EnvironmentInt("LOCAL_RANK", info.rank, 0, info.local_size - 1));
  info.master_port = MR_TRY(EnvironmentInt("MASTER_PORT", 0, 0, 65'535));
  if (const char* address = std::getenv("MASTER_ADDR")) info.master_address = address;
  if (info.size > 1 && info.master_port == 0) {
    return Fail(Code::kInvalidArgument,
                "WORLD_SIZE is {} but MASTER_PORT is not set; start the ranks with `millrace job run`", info.size);
  }
  return info;
}

Result<std::unique_ptr<Collective>> ConnectGloo(const RankInfo& info, Duration timeout) {
  const std::string what = fmt::format("connecting rank {} of {} through {}:{}", info.rank, info.size,
                                       info.master_address, info.master_port);
  auto group = CatchTorch(what, [&]() -> std::unique_ptr<Collective> {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(info.master_port);
    options.isServer = info.rank == 0;
    options.numWorkers = static_cast<std::size_t>(info.size);
    options.timeout = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
    auto store = c10::make_intrusive<c10d::TCPStore>(info.master_address, options);
    return std::make_unique<Gloo>(std::move(store), "train", info, timeout);
  });
  if (!group) return Fail(group.error().WithCode(Code::kUnavailable));
  return group;
}

}  // namespace millrace::engine
