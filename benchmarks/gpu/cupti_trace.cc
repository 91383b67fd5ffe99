// Records when each kernel, copy and fill of a program ran on the GPU. The CUDA driver loads this library into the
// program:
//   CUDA_INJECTION64_PATH=…/libcupti_trace.so MILLRACE_TRACE=trace.json program …
// At the program's end, the trace is written as JSON: {"names": […], "events": [[name, stream, start_ns, end_ns,
// bytes], …]}. profile_steps.py reads it. The program may be Millrace, PyTorch or any other.
#include <cupti.h>
#include <cxxabi.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

#if CUPTI_API_VERSION >= 130000
using KernelRecord = CUpti_ActivityKernel10;
#else
using KernelRecord = CUpti_ActivityKernel9;
#endif

struct TraceEvent {
  std::uint32_t name = 0, stream = 0;
  std::uint64_t start_ns = 0, end_ns = 0, bytes = 0;
};

struct Trace {
  std::mutex mutex;
  std::vector<std::string> names;
  std::unordered_map<std::string, std::uint32_t> index_of_name;
  std::vector<TraceEvent> events;

  std::uint32_t IndexOf(const char* name) {
    const auto [at, is_new] = index_of_name.try_emplace(name, static_cast<std::uint32_t>(names.size()));
    if (is_new) names.emplace_back(name);
    return at->second;
  }
};

// Never destroyed: CUPTI may still deliver buffers while the process ends.
Trace& TheTrace() {
  static Trace* const trace = new Trace;
  return *trace;
}

bool Succeeded(CUptiResult result, const char* call) {
  if (result == CUPTI_SUCCESS) return true;
  const char* text = "";
  cuptiGetResultString(result, &text);
  std::fprintf(stderr, "cupti_trace: %s: %s\n", call, text);
  return false;
}

const char* CopyName(std::uint8_t kind) {
  switch (kind) {
    case CUPTI_ACTIVITY_MEMCPY_KIND_HTOD:
      return "copy host to device";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOH:
      return "copy device to host";
    case CUPTI_ACTIVITY_MEMCPY_KIND_DTOD:
      return "copy device to device";
    default:
      return "copy";
  }
}

void Add(const CUpti_Activity& record) {
  Trace& trace = TheTrace();
  if (record.kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    const auto& kernel = reinterpret_cast<const KernelRecord&>(record);
    trace.events.push_back({trace.IndexOf(kernel.name), kernel.streamId, kernel.start, kernel.end, 0});
  } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
    trace.events.push_back({trace.IndexOf(CopyName(copy.copyKind)), copy.streamId, copy.start, copy.end, copy.bytes});
  } else if (record.kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto& fill = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
    trace.events.push_back({trace.IndexOf("fill"), fill.streamId, fill.start, fill.end, fill.bytes});
  }
}

constexpr std::size_t kBufferBytes = std::size_t{8} << 20;  // about 40,000 kernels

void CUPTIAPI GiveBuffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void CUPTIAPI TakeBuffer(CUcontext /*context*/, std::uint32_t /*stream*/, std::uint8_t* buffer, std::size_t /*size*/,
                         std::size_t valid_bytes) {
  {
    const std::lock_guard lock(TheTrace().mutex);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) Add(*record);
  }
  std::free(buffer);
}

void WriteName(std::FILE* out, const std::string& mangled) {
  int status = -1;
  char* const demangled =
      mangled.starts_with("_Z") ? abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status) : nullptr;
  const std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  std::fputc('"', out);
  for (const char c : name) {
    if (c == '"' || c == '\\') std::fputc('\\', out);
    std::fputc(static_cast<unsigned char>(c) < 0x20 ? ' ' : c, out);
  }
  std::fputc('"', out);
}

void WriteTrace() {
  Succeeded(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "cuptiActivityFlushAll");
  const char* const path = std::getenv("MILLRACE_TRACE");
  std::FILE* const out = std::fopen(path, "w");
  if (out == nullptr) {
    std::perror("cupti_trace: MILLRACE_TRACE");
    return;
  }
  Trace& trace = TheTrace();
  const std::lock_guard lock(trace.mutex);
  std::fputs("{\"names\": [", out);
  for (std::size_t i = 0; i < trace.names.size(); ++i) {
    if (i > 0) std::fputs(",\n", out);
    WriteName(out, trace.names[i]);
  }
  std::fputs("],\n\"events\": [", out);
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    const TraceEvent& e = trace.events[i];
    std::fprintf(out, "%s[%u,%u,%llu,%llu,%llu]", i > 0 ? ",\n" : "", e.name, e.stream,
                 static_cast<unsigned long long>(e.start_ns), static_cast<unsigned long long>(e.end_ns),
                 static_cast<unsigned long long>(e.bytes));
  }
  std::fputs("]}\n", out);
  if (std::fclose(out) != 0) std::perror("cupti_trace: MILLRACE_TRACE");
}

}  // namespace

/// Called by the CUDA driver when the program first uses it. Returns 1, also if nothing can be recorded: the program
/// runs on.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  if (std::getenv("MILLRACE_TRACE") == nullptr) return 1;
  if (!Succeeded(cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer), "cuptiActivityRegisterCallbacks")) return 1;
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (!Succeeded(cuptiActivityEnable(kind), "cuptiActivityEnable")) return 1;
  }
  std::atexit(WriteTrace);
  return 1;
}
