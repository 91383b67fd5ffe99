#include "millrace/base/copy.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>

namespace millrace {

void CopyNonTemporal(std::byte* to, ByteSpan from) {
#ifdef __SSE2__
  constexpr std::size_t kLine = 64;  // bytes in a cache line of x86: the unit in which write-combining buffers flush
  constexpr std::size_t kWord = sizeof(__m128i);
  const std::size_t before = std::min<std::size_t>(-reinterpret_cast<std::uintptr_t>(to) % kLine, from.size());
  std::memcpy(to, from.data(), before);
  const std::size_t end = before + (from.size() - before) / kLine * kLine;
  for (std::size_t at = before; at < end; at += kLine) {
    __m128i words[kLine / kWord];
    for (std::size_t i = 0; i < std::size(words); ++i)
      words[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from.data() + at) + i);
    for (std::size_t i = 0; i < std::size(words); ++i)
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at) + i, words[i]);
  }
  _mm_sfence();
  std::memcpy(to + end, from.data() + end, from.size() - end);
#else
  std::memcpy(to, from.data(), from.size());
#endif
}

}  // namespace millrace
