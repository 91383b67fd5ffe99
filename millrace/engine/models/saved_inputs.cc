#include "millrace/engine/models/saved_inputs.h"

#include <utility>

#include "millrace/engine/device/host_copy.h"

namespace millrace::engine {

/// The input of a block on the host.
class SavedInputs::OnHost {
 public:
  OnHost(const Stream& x, c10::Stream copies) : residual_(x.residual, copies) {
    if (x.delta.defined()) delta_.emplace(x.delta, copies);
  }
  void Fetch() {
    residual_.Fetch();
    if (delta_) delta_->Fetch();
  }
  Stream Take() { return {residual_.Take(), delta_ ? delta_->Take() : at::Tensor()}; }

 private:
  HostCopy residual_;
  std::optional<HostCopy> delta_;
};

std::function<Stream()> SavedInputs::Keep(const Stream& x) {
  const Stream in = x.Detached();
  if (!copies_) return [in] { return in.Detached(); };
  auto kept = std::make_shared<OnHost>(in, *copies_);
  return [kept, before = std::exchange(last_, kept)] {
    Stream taken = kept->Take();
    if (before != nullptr) before->Fetch();
    return taken;
  };
}

}  // namespace millrace::engine
