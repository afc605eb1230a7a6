// The cells of LSTM and GRU. PyTorch asks devices that are not a CPU for fused ones; these are made of plain operators,
// which differentiate themselves.
#pragma once
#include <ATen/ATen.h>

namespace npu {
using at::Tensor;

inline Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}
inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& from_input, const Tensor& from_hidden, const Tensor& cell,
                                                    const std::optional<Tensor>& input_bias,
                                                    const std::optional<Tensor>& hidden_bias) {
  auto gates = (with_bias(from_input, input_bias) + with_bias(from_hidden, hidden_bias)).chunk(4, 1);
  Tensor next = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * next.tanh(), next, at::empty({0}, cell.options())};
}
inline std::tuple<Tensor, Tensor> gru_cell(const Tensor& from_input, const Tensor& from_hidden, const Tensor& hidden,
                                           const std::optional<Tensor>& input_bias, const std::optional<Tensor>& hidden_bias) {
  auto in = with_bias(from_input, input_bias).chunk(3, 1), past = with_bias(from_hidden, hidden_bias).chunk(3, 1);
  Tensor keep = (in[1] + past[1]).sigmoid(), candidate = (in[2] + (in[0] + past[0]).sigmoid() * past[2]).tanh();
  return {(hidden - candidate) * keep + candidate, at::empty({0}, hidden.options())};
}
}  // namespace npu
