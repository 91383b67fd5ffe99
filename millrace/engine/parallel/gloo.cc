#include "millrace/engine/parallel/gloo.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <utility>
#include <vector>

#include "millrace/engine/errors.h"
#include "millrace/engine/parallel/connect.h"
#include "millrace/engine/parallel/direct_exchange.h"

namespace millrace::engine {
namespace {

using Work = c10::intrusive_ptr<c10d::Work>;

/// Gloo matches sends and receives of one tag in order. Operations of all ranks and messages have tags of their own,
/// because they run side by side. Nothing is ever sent with kAbortTag.
enum GlooTag : int { kCollectiveTag = 1, kMessageTag = 2, kAbortTag = 3 };

/// PeerLink on one tag of a process group.
class GlooLink final : public PeerLink {
 public:
  GlooLink(c10d::ProcessGroupGloo& group, const std::vector<int>& in_job, GlooTag tag)
      : group_(group), in_job_(in_job), tag_(tag) {}
  int rank() const override { return group_.getRank(); }
  int size() const override { return group_.getSize(); }
  int NameOf(int peer) const override { return in_job_[static_cast<std::size_t>(peer)]; }

  Result<std::unique_ptr<Transfer>> StartSend(ByteSpan bytes, int to) override {
    return Start(to, [&] {
      // Gloo's interface has no constant tensors; it only reads this one.
      std::vector<at::Tensor> tensors{TensorOf(const_cast<std::byte*>(bytes.data()), bytes.size())};
      return group_.send(tensors, to, tag_);
    });
  }
  Result<std::unique_ptr<Transfer>> StartReceive(MutableByteSpan into, int from) override {
    return Start(from, [&] {
      std::vector<at::Tensor> tensors{TensorOf(into.data(), into.size())};
      return group_.recv(tensors, from, tag_);
    });
  }

 private:
  class GlooTransfer final : public Transfer {
   public:
    GlooTransfer(Work work, int peer) : work_(std::move(work)), peer_(peer) {}
    Status Wait() override {
      const Status done = CatchTorch("gloo", [&] { work_->wait(); });
      if (!done) return Fail(Lost(peer_, done.error()));
      return {};
    }

   private:
    const Work work_;
    const int peer_;
  };

  static Error Lost(int peer, const Error& cause) {
    return cause.WithCode(Code::kUnavailable).Context(fmt::format("rank {} is gone or does not answer", peer));
  }
  static at::Tensor TensorOf(std::byte* data, std::size_t bytes) {
    return at::from_blob(data, {static_cast<std::int64_t>(bytes)}, at::kByte);
  }
  template <class Post>
  Result<std::unique_ptr<Transfer>> Start(int peer, Post post) {
    auto work = CatchTorch("gloo", std::move(post));
    if (!work) return Fail(Lost(NameOf(peer), work.error()));
    return std::make_unique<GlooTransfer>(*std::move(work), NameOf(peer));
  }

  c10d::ProcessGroupGloo& group_;
  const std::vector<int>& in_job_;  ///< of each peer, its rank in the job
  const GlooTag tag_;
};

class GlooTransport final : public Transport {
 public:
  GlooTransport(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, std::vector<int> in_job, GroupSplitter splitter)
      : group_(std::move(group)), in_job_(std::move(in_job)), splitter_(std::move(splitter)) {}

  int rank() const override { return group_->getRank(); }
  int size() const override { return group_->getSize(); }

  Status AllReduce(const at::Tensor& tensor, Reduction reduction) override {
    return DirectAllReduce(collective_link_, tensor, reduction);
  }
  Status AllGather(const at::Tensor& all, const at::Tensor& mine) override {
    return DirectAllGather(collective_link_, all, mine);
  }
  Status ReduceScatter(const at::Tensor& mine, const at::Tensor& all, Reduction reduction) override {
    return DirectReduceScatter(collective_link_, mine, all, reduction);
  }
  Status Broadcast(const at::Tensor& tensor, int root) override {
    return DirectBroadcast(collective_link_, tensor, root);
  }
  Status Send(const at::Tensor& tensor, int to) override {
    GlooLink link(*group_, in_job_, kMessageTag);
    return DirectSend(link, tensor, to);
  }
  Status Receive(const at::Tensor& tensor, int from) override {
    GlooLink link(*group_, in_job_, kMessageTag);
    return DirectReceive(link, tensor, from);
  }

  /// Closes all connections, so that the peers notice. Gloo closes them when a receive is late; so this one is made
  /// late.
  void Abort(const Error&) override {
    (void)CatchTorch("gloo", [&] {
      std::vector<at::Tensor> nothing{at::empty({1}, at::kByte)};
      group_->recv(nothing, rank() == 0 ? 1 : 0, kAbortTag)->wait(std::chrono::milliseconds(1));
    });
  }

  Result<std::unique_ptr<Collective>> Split(const std::string& name, std::span<const int> members) override {
    return splitter_(name, members);
  }

 private:
  const c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  const std::vector<int> in_job_;
  const GroupSplitter splitter_;
  GlooLink collective_link_{*group_, in_job_, kCollectiveTag};
};

}  // namespace

bool HasGloo() { return true; }

Result<std::unique_ptr<Transport>> ConnectGlooTransport(c10::intrusive_ptr<c10d::Store> store, GroupMembers members,
                                                        bool loopback, Duration timeout, GroupSplitter splitter) {
  return CatchTorch("connecting over Gloo", [&]() -> std::unique_ptr<Transport> {
    auto options =
        c10d::ProcessGroupGloo::Options::create(std::chrono::duration_cast<std::chrono::milliseconds>(timeout));
    options->devices.push_back(loopback ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                        : c10d::ProcessGroupGloo::createDefaultDevice());
    options->threads = 1;  // for Gloo's own collectives, which are not used; it needs one
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(std::move(store), members.rank, members.size(), options);
    return std::make_unique<GlooTransport>(std::move(group), std::move(members.in_job), std::move(splitter));
  });
}

}  // namespace millrace::engine
