// In place of gloo.cc, where libtorch comes without Gloo's headers.
#include "millrace/engine/parallel/connect.h"
#include "millrace/engine/parallel/gloo.h"

namespace millrace::engine {

bool HasGloo() { return false; }

Result<std::unique_ptr<Transport>> ConnectGlooTransport(c10::intrusive_ptr<c10d::Store>, GroupMembers, bool, Duration,
                                                        GroupSplitter) {
  return Fail(Code::kUnsupported,
              "ranks on several machines need Gloo, whose headers the PyTorch that this program was built with lacks. "
              "Run all ranks on one machine, or build with the distribution's libtorch");
}

}  // namespace millrace::engine
