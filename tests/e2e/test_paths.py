"""Paths as multipath sees them: target port groups, their states, and who sets them."""
import host
import sg

NOT_READY, STANDBY, UNAVAILABLE = 2, 0x040b, 0x040c
STATE_CHANGED = 0x2a06


def two_paths(t):
    daemon = t.daemon(portals=('127.0.0.1', '127.0.0.1'))
    hosts = []
    for number, portal in enumerate(daemon.portals, 1):
        address, _, port = portal.rpartition(':')
        hosts.append(host.Host(t, daemon, isid=number, portal=(address, int(port))))
        hosts[-1].attentions()
    return daemon, *hosts


def test_an_operator_changes_the_state_of_a_path(t):
    """Hosts hear of it, and commands get what the state says, until it is optimized again."""
    daemon, one, two = two_paths(t)
    daemon.sandbay('portal', 'state', '2', 'standby')
    t.check(one.attentions() == [STATE_CHANGED], 'the first path hears of it')
    reply = two.command(host.TEST_UNIT_READY)
    t.check(reply.additional == STATE_CHANGED, f'the second hears of it: {reply!r}')
    reply = two.read(0, 1)
    t.check((reply.key, reply.additional) == (NOT_READY, STANDBY), f'a read in standby: {reply!r}')
    t.check(one.read(0, 1).good, 'the other path reads')
    said = daemon.sandbay('portal', 'list').stdout
    t.check('standby' in said and 'active/optimized' in said, said)
    # A volume that comes later has the state, too.
    daemon.sandbay('volume', 'create', 'later', '--size', '1MiB', '--initiator', '*')
    address, _, port = daemon.portals[1].rpartition(':')
    later = host.Host(t, daemon, 'later', portal=(address, int(port)))
    later.command(host.TEST_UNIT_READY)
    reply = later.read(0, 1)
    t.check((reply.key, reply.additional) == (NOT_READY, STANDBY), f'a new volume: {reply!r}')
    daemon.sandbay('portal', 'state', '2', 'unavailable')
    two.command(host.TEST_UNIT_READY)
    two.command(host.TEST_UNIT_READY)
    reply = two.read(0, 1)
    t.check(reply.additional == UNAVAILABLE, f'a read while unavailable: {reply!r}')
    daemon.sandbay('portal', 'state', '2', 'active/optimized')
    two.attentions()
    t.check(two.read(0, 1).good, 'optimized again')
    for tag, state, code in (('3', 'standby', 4), ('1', 'stand-by', 7)):
        refused = daemon.sandbay('portal', 'state', tag, state, ok=None)
        t.check(refused.returncode == code and len(refused.stdout.splitlines()) == 1,
                f'{refused.returncode}: {refused.stdout}')


def test_tools_of_sg3_utils_read_and_set_paths(t):
    _, one, two = two_paths(t)
    first, second = sg.Device(t, one), sg.Device(t, two)
    said = first.run('sg_rtpg', '--decode')
    for word in ('target port group id : 0x1', 'target port group id : 0x2', 'active/optimized',
                 'T_SUP : 1, O_SUP : 0, LBD_SUP : 0, U_SUP : 1, S_SUP : 1, AN_SUP : 1, AO_SUP : 1'):
        t.check(word.lower() in said.lower(), said)
    t.check('0x2' in first.run('sg_rtpg', '--decode', '--extended'), 'the extended header')
    first.run('sg_stpg', '--tp=2,1', '--state=s,ao')
    t.check(two.command(host.TEST_UNIT_READY).additional == STATE_CHANGED, 'the other path hears')
    said = first.run('sg_rtpg', '--decode')
    t.check('standby' in said and 'changed by SET TARGET PORT GROUPS' in said, said)
    reply = two.read(0, 1)
    t.check((reply.key, reply.additional) == (NOT_READY, STANDBY), f'a read in standby: {reply!r}')
    said = second.run('sg_vpd', '--page=sp')
    for word in ('Relative port=1', 'Relative port=2', ',t,0x0002'):
        t.check(word in said, said)
    said = second.run('sg_vpd', '--page=di')
    for word in ('Relative target port: 0x2', 'Target port group: 0x2'):
        t.check(word in said, said)
    t.check('TPGS=3' in second.run('sg_inq'), 'TPGS')
