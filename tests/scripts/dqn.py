"""Reinforcement learning in the style of PyTorch's DQN tutorial: a module-level device, a replay memory of namedtuples,
a target network that follows slowly, clipped gradients. The world is a corridor."""

import math
import random
from collections import deque, namedtuple
from itertools import count

import torch
import torch.nn as nn
import torch.optim as optim

device = torch.device(
    "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
)  # fmt: skip
Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
random.seed(4)
torch.manual_seed(4)


class ReplayMemory(object):
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, batch_size):
        return random.sample(self.memory, batch_size)

    def __len__(self):
        return len(self.memory)


def make_net():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)).to(device)


BATCH_SIZE, GAMMA, TAU = 16, 0.9, 0.05
policy_net, target_net = make_net(), make_net()
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.AdamW(policy_net.parameters(), lr=1e-2, amsgrad=True)
memory = ReplayMemory(200)
steps_done = 0


def select_action(state):
    global steps_done
    eps_threshold = 0.1 + 0.8 * math.exp(-1.0 * steps_done / 60)
    steps_done += 1
    if random.random() > eps_threshold:
        with torch.no_grad():
            return policy_net(state).max(1).indices.view(1, 1)
    return torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return None
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    non_final_mask = torch.tensor(tuple(s is not None for s in batch.next_state), device=device, dtype=torch.bool)
    non_final_next_states = torch.cat([s for s in batch.next_state if s is not None])
    state_action_values = policy_net(torch.cat(batch.state)).gather(1, torch.cat(batch.action))
    next_state_values = torch.zeros(BATCH_SIZE, device=device)
    with torch.no_grad():
        next_state_values[non_final_mask] = target_net(non_final_next_states).max(1).values
    expected = (next_state_values * GAMMA) + torch.cat(batch.reward)
    loss = nn.SmoothL1Loss()(state_action_values, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy_net.parameters(), 100)
    optimizer.step()
    return loss.item()


for i_episode in range(5):
    place, state = 0, torch.tensor([0.0, 1.0], dtype=torch.float32, device=device).unsqueeze(0)
    for t in count():
        action = select_action(state)
        place = max(0, place + (1 if action.item() else -1))
        done = place == 3 or t == 30
        reward = torch.tensor([1.0 if place == 3 else -0.1], device=device)
        next_state = None if done else torch.tensor([[place / 3, 1.0]], dtype=torch.float32, device=device)
        memory.push(state, action, next_state, reward)
        state = next_state
        loss = optimize_model()
        target_net_state_dict, policy_net_state_dict = target_net.state_dict(), policy_net.state_dict()
        for key in policy_net_state_dict:
            target_net_state_dict[key] = policy_net_state_dict[key] * TAU + target_net_state_dict[key] * (1 - TAU)
        target_net.load_state_dict(target_net_state_dict)
        if done:
            print(f"episode {i_episode} took {t + 1} steps, loss {loss}")
            break
