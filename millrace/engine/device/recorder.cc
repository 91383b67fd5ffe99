#include "millrace/engine/device/recorder.h"

#ifdef MILLRACE_CUDA
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#endif

#include <utility>

namespace millrace::engine {

struct RecordedWork::Form {
  std::function<void()> again;  ///< of a CPU
#ifdef MILLRACE_CUDA
  std::unique_ptr<at::cuda::CUDAGraph> graph = nullptr;
#endif
};

struct Recorder::Memory {
#ifdef MILLRACE_CUDA
  c10::cuda::CUDAStream stream;  ///< nothing can be recorded on the default one
  at::cuda::MempoolId_t pool = at::cuda::graph_pool_handle();
#endif
};

void RecordedWork::Replay() {
#ifdef MILLRACE_CUDA
  if (form_->graph != nullptr) return form_->graph->replay();
#endif
  form_->again();
}

Recorder::Recorder(at::Device device) {
  if (device.is_cpu()) return;
#ifdef MILLRACE_CUDA
  memory_ = std::make_unique<Memory>(Memory{c10::cuda::getStreamFromPool(false, device.index())});
#else
  TORCH_CHECK(false, "no work is recorded for ", device);
#endif
}

RecordedWork Recorder::Record(std::function<void()> work) {
#ifdef MILLRACE_CUDA
  if (memory_ != nullptr) {
    const c10::cuda::CUDAStreamGuard on_stream(memory_->stream);
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    // Other threads may use the GPU meanwhile.
    graph->capture_begin(memory_->pool, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph->capture_end();
      } catch (const c10::Error&) {  // what `work` threw says more
      }
      throw;
    }
    graph->capture_end();
    return RecordedWork(
        std::make_unique<RecordedWork::Form>(RecordedWork::Form{.again = {}, .graph = std::move(graph)}));
  }
#endif
  return RecordedWork(std::make_unique<RecordedWork::Form>(RecordedWork::Form{.again = std::move(work)}));
}

RecordedWork::RecordedWork(std::unique_ptr<Form> form) : form_(std::move(form)) {}
RecordedWork::RecordedWork(RecordedWork&& other) noexcept = default;
RecordedWork::~RecordedWork() = default;
Recorder::~Recorder() = default;

}  // namespace millrace::engine
