// The parity of the tests: by the definition, a bit and a byte at a time, and sharing no code with
// the product. GF(2^8) with the polynomial 0x11d and g = 2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sandbay::raid::reference {

inline unsigned multiply(unsigned a, unsigned b) {
  unsigned product = 0;
  for (unsigned bit = 0; bit < 8; ++bit) {
    if ((b >> bit & 1) != 0) product ^= a << bit;
  }
  for (unsigned bit = 15; bit >= 8; --bit) {
    if ((product >> bit & 1) != 0) product ^= 0x11du << (bit - 8);
  }
  return product;
}

// What data chunk `index` is multiplied with in P (parity 0) and in Q (parity 1).
inline unsigned coefficient(unsigned parity, unsigned index) {
  unsigned value = 1;
  for (unsigned i = 0; parity == 1 && i < index; ++i) value = multiply(value, 2);
  return value;
}

inline std::vector<std::byte> parity_of(const std::vector<std::vector<std::byte>>& data,
                                        unsigned parity) {
  std::vector<std::byte> sum(data.at(0).size());
  for (unsigned index = 0; index < data.size(); ++index) {
    const unsigned constant = coefficient(parity, index);
    for (std::size_t at = 0; at < sum.size(); ++at) {
      const auto value = std::to_integer<unsigned>(data[index][at]);
      sum[at] ^= static_cast<std::byte>(multiply(constant, value));
    }
  }
  return sum;
}

}  // namespace sandbay::raid::reference
