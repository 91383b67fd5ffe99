// A group that passes everything on. Groups for tests derive from it and change some operations.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "millrace/collectives/collective.h"

namespace millrace::engine {

/// Wraps a rank of a group. Groups that are split from it are those of `inner`, not wrapped.
class ForwardingCollective : public Collective {
 public:
  explicit ForwardingCollective(std::unique_ptr<Collective> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  Operation StartAllReduce(at::Tensor tensor, Reduction reduction) override {
    return inner_->StartAllReduce(std::move(tensor), reduction);
  }
  Operation StartReduceScatter(at::Tensor mine, at::Tensor all, Reduction reduction) override {
    return inner_->StartReduceScatter(std::move(mine), std::move(all), reduction);
  }
  Operation StartAllGather(at::Tensor all, at::Tensor mine) override {
    return inner_->StartAllGather(std::move(all), std::move(mine));
  }
  Operation StartBroadcast(at::Tensor tensor, int root) override {
    return inner_->StartBroadcast(std::move(tensor), root);
  }
  Operation StartSend(at::Tensor tensor, int to) override { return inner_->StartSend(std::move(tensor), to); }
  Operation StartReceive(at::Tensor tensor, int from) override { return inner_->StartReceive(std::move(tensor), from); }
  void Abort(const Error& cause) override { inner_->Abort(cause); }
  Result<std::unique_ptr<Collective>> Split(std::string name, std::span<const int> members) override {
    return inner_->Split(std::move(name), members);
  }

 protected:
  const std::unique_ptr<Collective> inner_;
};

}  // namespace millrace::engine
