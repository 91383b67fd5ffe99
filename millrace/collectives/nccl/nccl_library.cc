#include <dlfcn.h>

#include <climits>
#include <utility>

#include "millrace/collectives/nccl/nccl_api.h"

namespace millrace::collectives {
namespace {

/// The first version whose communicators need not block.
constexpr int kLeastVersion = 21400;

/// ncclConfig_t of version 2.14. NCCL takes what this version had, and fills in the rest.
struct NcclConfig {
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = kLeastVersion;
  int blocking = 0;
  int undefined = INT_MIN;
};

/// ncclUniqueId: a structure that C passes by value.
struct UniqueId {
  char bytes[sizeof(NcclId)];
};

class NcclLibrary final : public NcclApi {
 public:
  /// Finds all functions. Errors: kUnavailable.
  static Result<std::shared_ptr<NcclApi>> Open(void* library) {
    auto made = std::make_shared<NcclLibrary>();
    std::string missing;
    const auto find = [&]<class Function>(Function*& function, const char* name) {
      function = reinterpret_cast<Function*>(::dlsym(library, name));
      if (function == nullptr && missing.empty()) missing = name;
    };
    find(made->get_version_, "ncclGetVersion");
    find(made->get_unique_id_, "ncclGetUniqueId");
    find(made->init_rank_, "ncclCommInitRankConfig");
    find(made->async_state_, "ncclCommGetAsyncError");
    find(made->finalize_, "ncclCommFinalize");
    find(made->destroy_, "ncclCommDestroy");
    find(made->abort_, "ncclCommAbort");
    find(made->all_reduce_, "ncclAllReduce");
    find(made->reduce_scatter_, "ncclReduceScatter");
    find(made->all_gather_, "ncclAllGather");
    find(made->broadcast_, "ncclBroadcast");
    find(made->send_, "ncclSend");
    find(made->receive_, "ncclRecv");
    find(made->error_string_, "ncclGetErrorString");
    find(made->last_error_, "ncclGetLastError");
    if (!missing.empty()) return Fail(Code::kUnavailable, "libnccl.so.2 is too old: it has no {}", missing);
    int version = 0;
    if (made->get_version_(&version) != 0 || version < kLeastVersion) {
      return Fail(Code::kUnavailable, "libnccl.so.2 has version {}, which is older than {}", version, kLeastVersion);
    }
    return made;
  }

  NcclResult GetUniqueId(NcclId* id) override { return NcclResult(get_unique_id_(id)); }
  NcclResult InitRank(NcclHandle* made, int ranks, const NcclId& id, int rank) override {
    NcclConfig config;
    UniqueId passed;
    std::copy(id.bytes.begin(), id.bytes.end(), passed.bytes);
    return NcclResult(init_rank_(made, ranks, passed, rank, &config));
  }
  NcclResult AsyncState(NcclHandle of, NcclResult* state) override {
    int value = 0;
    const NcclResult asked = NcclResult(async_state_(of, &value));
    *state = NcclResult(value);
    return asked;
  }
  NcclResult Finalize(NcclHandle of) override { return NcclResult(finalize_(of)); }
  NcclResult Destroy(NcclHandle of) override { return NcclResult(destroy_(of)); }
  NcclResult Abort(NcclHandle of) override { return NcclResult(abort_(of)); }

  NcclResult AllReduce(void* data, std::size_t count, NcclType type, NcclReduction reduction, NcclHandle with,
                       void* stream) override {
    return NcclResult(all_reduce_(data, data, count, int(type), int(reduction), with, stream));
  }
  NcclResult ReduceScatter(const void* all, void* mine, std::size_t count, NcclType type, NcclReduction reduction,
                           NcclHandle with, void* stream) override {
    return NcclResult(reduce_scatter_(all, mine, count, int(type), int(reduction), with, stream));
  }
  NcclResult AllGather(const void* mine, void* all, std::size_t count, NcclType type, NcclHandle with,
                       void* stream) override {
    return NcclResult(all_gather_(mine, all, count, int(type), with, stream));
  }
  NcclResult Broadcast(void* data, std::size_t count, NcclType type, int root, NcclHandle with, void* stream) override {
    return NcclResult(broadcast_(data, data, count, int(type), root, with, stream));
  }
  NcclResult Send(const void* data, std::size_t count, NcclType type, int to, NcclHandle with, void* stream) override {
    return NcclResult(send_(data, count, int(type), to, with, stream));
  }
  NcclResult Receive(void* data, std::size_t count, NcclType type, int from, NcclHandle with, void* stream) override {
    return NcclResult(receive_(data, count, int(type), from, with, stream));
  }
  std::string Text(NcclResult result) override {
    return fmt::format("{} ({})", error_string_(int(result)), last_error_(nullptr));
  }

 private:
  int (*get_version_)(int*) = nullptr;
  int (*get_unique_id_)(NcclId*) = nullptr;
  int (*init_rank_)(NcclHandle*, int, UniqueId, int, NcclConfig*) = nullptr;
  int (*async_state_)(NcclHandle, int*) = nullptr;
  int (*finalize_)(NcclHandle) = nullptr;
  int (*destroy_)(NcclHandle) = nullptr;
  int (*abort_)(NcclHandle) = nullptr;
  int (*all_reduce_)(const void*, void*, std::size_t, int, int, NcclHandle, void*) = nullptr;
  int (*reduce_scatter_)(const void*, void*, std::size_t, int, int, NcclHandle, void*) = nullptr;
  int (*all_gather_)(const void*, void*, std::size_t, int, NcclHandle, void*) = nullptr;
  int (*broadcast_)(const void*, void*, std::size_t, int, int, NcclHandle, void*) = nullptr;
  int (*send_)(const void*, std::size_t, int, int, NcclHandle, void*) = nullptr;
  int (*receive_)(void*, std::size_t, int, int, NcclHandle, void*) = nullptr;
  const char* (*error_string_)(int) = nullptr;
  const char* (*last_error_)(NcclHandle) = nullptr;
};

}  // namespace

Result<std::shared_ptr<NcclApi>> LoadNccl() {
  // Never closed: NCCL has threads of its own.
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Fail(Code::kUnavailable, "{}", ::dlerror());
  return NcclLibrary::Open(library);
}

}  // namespace millrace::collectives
