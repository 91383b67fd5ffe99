#include "millrace/engine/parallel/staged.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "millrace/engine/device/host_memory.h"
#include "millrace/engine/errors.h"

namespace millrace::engine {
namespace {

using Stages = std::function<bool(const Elements&)>;

/// An operation that has failed before it started.
class FailedOperation final : public Collective::Pending {
 public:
  explicit FailedOperation(Error error) : error_(std::move(error)) {}
  Status Wait() override { return Fail(error_); }

 private:
  const Error error_;
};

/// An operation of the inner group on copies. Wait() copies the result into the caller's tensor.
class StagedOperation final : public Collective::Pending {
 public:
  /// `into` is undefined if the operation has no result here. `kept` is what the inner operation uses. `adds`: the
  /// result is added to `into`.
  StagedOperation(Collective::Operation inner, at::Tensor into, at::Tensor result, at::Tensor kept = {},
                  bool adds = false)
      : into_(std::move(into)),
        result_(std::move(result)),
        kept_(std::move(kept)),
        adds_(adds),
        inner_(std::move(inner)) {}

  Status Wait() override {
    MR_TRY(inner_->Wait());
    if (!into_.defined()) return {};
    const at::Tensor into = std::exchange(into_, {});
    return CatchTorch("copying to the GPU", [&] {
      const at::NoGradGuard no_grad;
      if (adds_) {
        into.add_(result_.view_as(into).to(into.device(), result_.scalar_type(), /*non_blocking=*/true));
        return;
      }
      const at::Tensor same_type = result_.scalar_type() == into.scalar_type()
                                       ? result_
                                       : EmptyOnHost(result_.sizes(), into.scalar_type(), into.device()).copy_(result_);
      into.copy_(same_type.view_as(into), /*non_blocking=*/true);
    });
  }

 private:
  at::Tensor into_;
  const at::Tensor result_, kept_;
  const bool adds_;
  const Collective::Operation inner_;  ///< destroyed first: its destructor waits for the use of the copies
};

class StagedCollective final : public Collective {
 public:
  StagedCollective(std::unique_ptr<Collective> inner, at::Device device, Stages stages)
      : inner_(std::move(inner)), device_(device), stages_(std::move(stages)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  Operation StartAllReduce(Elements elements, Reduction reduction) override {
    if (!IsStagedSum(elements)) return inner_->StartAllReduce(std::move(elements), reduction);
    return Start([&] {
      const at::Tensor tensor = TensorOf(elements), host = Copy(tensor, SummedType(tensor));
      return std::make_unique<StagedOperation>(inner_->StartAllReduce(host, reduction), tensor, host);
    });
  }
  Operation StartAllGather(Elements all, Elements mine) override {
    if (!IsStaged(all) || !IsStaged(mine)) return inner_->StartAllGather(std::move(all), std::move(mine));
    return Start([&] {
      const at::Tensor into = TensorOf(all), host = EmptyOnHost(into.sizes(), into.scalar_type(), device_);
      const at::Tensor from = TensorOf(mine), part = Copy(from, from.scalar_type());
      return std::make_unique<StagedOperation>(inner_->StartAllGather(host, part), into, host, part);
    });
  }
  Operation StartReduceScatter(Elements mine, Elements all, Reduction reduction) override {
    if (!IsStagedSum(all) || !IsStagedSum(mine)) {
      return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction);
    }
    return Start([&] {
      // The device adds to `mine`, which stays there. 16 bits are rounded then, and not before.
      const bool adds = reduction == Reduction::kAddSum;
      const at::Tensor into = TensorOf(mine), from = TensorOf(all);
      const at::ScalarType type = adds && from.scalar_type() == at::kBFloat16 ? at::kFloat : SummedType(from);
      const at::Tensor host = Copy(from, type);
      const at::Tensor part = EmptyOnHost(into.sizes(), type, device_);
      return std::make_unique<StagedOperation>(
          inner_->StartReduceScatter(part, host, adds ? Reduction::kSum : reduction), into, part, host, adds);
    });
  }
  Operation StartBroadcast(Elements elements, int root) override {
    if (!IsStaged(elements)) return inner_->StartBroadcast(std::move(elements), root);
    return Start([&] {
      const bool sends = root == rank();
      const at::Tensor tensor = TensorOf(elements);
      const at::Tensor host =
          sends ? Copy(tensor, tensor.scalar_type()) : EmptyOnHost(tensor.sizes(), tensor.scalar_type(), device_);
      return std::make_unique<StagedOperation>(inner_->StartBroadcast(host, root), sends ? at::Tensor() : tensor, host);
    });
  }
  Operation StartSend(Elements elements, int to) override {
    if (!IsStaged(elements)) return inner_->StartSend(std::move(elements), to);
    return Start([&] {
      const at::Tensor tensor = TensorOf(elements), host = Copy(tensor, tensor.scalar_type());
      return std::make_unique<StagedOperation>(inner_->StartSend(host, to), at::Tensor(), host);
    });
  }
  Operation StartReceive(Elements elements, int from) override {
    if (!IsStaged(elements)) return inner_->StartReceive(std::move(elements), from);
    return Start([&] {
      const at::Tensor tensor = TensorOf(elements);
      const at::Tensor host = EmptyOnHost(tensor.sizes(), tensor.scalar_type(), device_);
      return std::make_unique<StagedOperation>(inner_->StartReceive(host, from), tensor, host);
    });
  }

  void Abort(const Error& cause) override { inner_->Abort(cause); }

  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    std::unique_ptr<Collective> part = MR_TRY(inner_->Split(std::move(name), members));
    return StageThroughHost(std::move(part), device_, stages_);
  }

 private:
  /// What the inner group refuses goes to it as it is.
  bool IsStaged(const Elements& elements) const { return elements.fault == nullptr && stages_(elements); }

  bool IsStagedSum(const Elements& elements) const {
    return IsStaged(elements) && elements.type != collectives::ElementType::kBytes;
  }

  /// The inner group does not add float16 numbers.
  static at::ScalarType SummedType(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kHalf ? at::kFloat : tensor.scalar_type();
  }

  /// Returns a copy on the host. Waits until the device has computed the tensor.
  at::Tensor Copy(const at::Tensor& tensor, at::ScalarType type) const {
    const at::NoGradGuard no_grad;
    const at::Tensor host = EmptyOnHost(tensor.sizes(), tensor.scalar_type(), device_);
    host.copy_(tensor);
    return type == tensor.scalar_type() ? host : host.to(type);
  }

  /// A copy that fails fails the group, so that the other ranks do not wait for this one.
  template <class Work>
  Operation Start(Work&& work) {
    auto started = CatchTorch("copying from the GPU", [&]() -> Operation { return work(); });
    if (started) return *std::move(started);
    inner_->Abort(started.error());
    return std::make_unique<FailedOperation>(started.error());
  }

  const std::unique_ptr<Collective> inner_;
  const at::Device device_;
  const Stages stages_;
};

}  // namespace

std::unique_ptr<Collective> StageThroughHost(std::unique_ptr<Collective> inner, at::Device device,
                                             std::function<bool(const Elements&)> stages) {
  if (!stages) stages = [](const Elements& elements) { return !elements.device.is_host(); };
  if (inner->size() == 1) return inner;  // nobody to exchange with: it takes the tensors of every device
  return std::make_unique<StagedCollective>(std::move(inner), device, std::move(stages));
}

}  // namespace millrace::engine
