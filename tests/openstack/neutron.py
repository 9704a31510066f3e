"""Plays Neutron's Calico driver: the syncers of networking-calico write to a real etcd, from a small network in memory.

The modules of networking-calico (datamodel_v3, etcdv3, endpoints, policy, subnets, syncer, status) run as they are. What they import
of Neutron, Oslo and Eventlet is replaced by the classes below: they give configuration, logs, threads and the objects of the network,
and decide nothing. The driver's main module needs all of Neutron: Driver has its two callbacks of StatusWatcher, and writes the two
settings as it does. networking-calico 3.12 is written for Python 2: dict.iteritems and intern are added, and bytes become text.

Reads commands from standard input, one JSON object a line, and answers each with one line:
  {"op": "start"}                                       ClusterInformation and FelixConfiguration, as the driver keeps them
  {"op": "group", "id", "name", "rules": [..]}          a security group with Neutron's rules
  {"op": "port", "id", "device", "host", "ips": [..], "groups": [..], "mac", "pairs": [..], "floating": [[int, ext], ..]}
  {"op": "delete-port", "id"}
  {"op": "subnet", "id", "cidr", "gateway"}
  {"op": "resync"}                                      answers with what it rewrote or deleted: {"changes": [..]}
  {"op": "watch"}                                       starts the reader of the agents' status
  {"op": "status"}                                      answers with what that has found: {"agents": {host: {"seen": times, "new": times}},
                                                        "ports": {id: [{"host", "status", "priority"}, ..]}}
"""
import builtins
import collections
import json
import logging
import sys
import threading
import time
import types


class Options(object):
    """Stands for oslo_config: options with defaults, by attribute."""

    def __init__(self, **values):
        self.__dict__.update(values)


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    parent, _, leaf = name.rpartition('.')
    if parent:
        if parent not in sys.modules:
            module(parent)
        setattr(sys.modules[parent], leaf, made)
    return made


class PortNotFound(Exception):
    pass


def spawn(function, *args):
    """Stands for a green thread."""
    thread = threading.Thread(target=function, args=args, daemon=True)
    thread.start()
    return thread


def install(host, port, region):
    calico = Options(etcd_host=host, etcd_port=port, etcd_scheme='http', etcd_key_file=None, etcd_cert_file=None,
                     etcd_ca_cert_file=None, etcd_username=None, etcd_password=None, etcd_timeout=60,
                     openstack_region=region, project_name_cache_max=100)
    option = lambda *args, **kwargs: None
    cfg = module('oslo_config.cfg', CONF=Options(calico=calico), StrOpt=option, IntOpt=option)
    module('oslo_config', cfg=cfg)
    module('oslo_log', log=module('oslo_log.log', getLogger=logging.getLogger))
    module('oslo_db', exception=module('oslo_db.exception'))
    module('oslo_concurrency', lockutils=module('oslo_concurrency.lockutils'))
    exceptions = module('neutron_lib.exceptions', PortNotFound=PortNotFound)
    constants = module('neutron_lib.constants', DHCPV6_STATEFUL='dhcpv6-stateful')
    module('neutron_lib.plugins', directory=module('neutron_lib.plugins.directory'))
    module('neutron_lib', exceptions=exceptions, constants=constants, plugins=sys.modules['neutron_lib.plugins'])
    module('neutron.db.models_v2', IPAllocation='IPAllocation')
    module('neutron.db.l3_db', FloatingIP='FloatingIP')
    module('neutron.db.models.l3', FloatingIP='FloatingIP')


class IterDict(dict):
    def iteritems(self):
        return self.items()


class IterDefaultDict(collections.defaultdict):
    def iteritems(self):
        return self.items()


def text(value):
    """Under Python 3 the client answers with bytes, where networking-calico wants text."""
    return value.decode() if isinstance(value, bytes) else value


class Answers(object):
    """A watch as the client of etcd expects it: pieces are octets, and each is one answer. The requests of today decodes JSON."""

    def __init__(self, response):
        self.response = response

    def iter_content(self, **_):
        return self.response.iter_lines()


def text_event(event):
    if event is not None:
        event['kv'].update((name, text(event['kv'][name])) for name in ('key', 'value') if name in event['kv'])
    return event


class Network(object):
    """The objects of the network, as Neutron's database answers."""

    def __init__(self):
        self.ports, self.groups, self.rules, self.subnets, self.floating = {}, {}, [], {}, []

    def get_ports(self, context):
        return [dict(port) for port in self.ports.values()]

    def get_port(self, context, ident):
        if ident not in self.ports:
            raise PortNotFound()
        return dict(self.ports[ident])

    def get_subnet(self, context, ident):
        return self.subnets[ident]

    def get_subnets(self, context, filters=None):
        wanted = (filters or {}).get('id')
        return [s for s in self.subnets.values() if wanted is None or s['id'] in wanted]

    def get_security_groups(self, context, filters=None, default_sg=False):
        wanted = (filters or {}).get('id')
        return [g for g in self.groups.values() if wanted is None or g['id'] in wanted]

    def get_security_group_rules(self, context, filters=None):
        return [r for r in self.rules if r['security_group_id'] in filters['security_group_id']]

    def _get_port_security_group_bindings(self, context, filters=None):
        return [{'security_group_id': group}
                for ident in filters['port_id'] for group in self.ports[ident]['security_groups']]


class Query(object):
    def __init__(self, rows):
        self.rows = rows

    def filter_by(self, **wanted):
        return [row for row in self.rows if all(row[name] == value for name, value in wanted.items())]


class Context(object):
    """A request's context; its session answers the two tables that the syncers ask for."""

    def __init__(self, network):
        self.network, self.session = network, self

    def query(self, table):
        if table == 'IPAllocation':
            return Query([dict(ip, port_id=port['id']) for port in self.network.ports.values() for ip in port['fixed_ips']])
        return Query(self.network.floating)


class Transaction(object):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


class Changes(logging.Handler):
    """Collects what a resync says that it rewrites or deletes."""

    def __init__(self):
        logging.Handler.__init__(self)
        self.found = []

    def emit(self, record):
        text = record.getMessage()
        if 'needed for' in text or 'failed etcd' in text:
            self.found.append(text)


class Driver(object):
    def __init__(self):
        from etcd3gw import watch
        from networking_calico import datamodel_v3, etcdv3
        follow = watch._watch
        watch._watch = lambda response, callback: follow(Answers(response), callback)
        # The client of etcd has looked for Eventlet by now, and uses threads.
        module('eventlet', spawn=spawn, sleep=time.sleep)
        from networking_calico.plugins.ml2.drivers.calico import endpoints, policy, status, subnets
        self.datamodel, self.etcd = datamodel_v3, etcdv3
        listed, watched = etcdv3.get_prefix, etcdv3.watch_subtree

        def watch_subtree(prefix, start_revision):
            events, cancel = watched(prefix, start_revision)
            return (text_event(event) for event in events), cancel
        etcdv3.get_prefix = lambda prefix, revision=None: [
            (text(key), text(value), last) for key, value, last in listed(prefix, revision)]
        etcdv3.watch_subtree = watch_subtree
        builtins.intern = lambda word: sys.intern(text(word))
        status.collections = Options(defaultdict=IterDefaultDict, namedtuple=collections.namedtuple)
        self.watcher, self.lock = status.StatusWatcher, threading.Lock()
        self.agents, self.statuses = {}, {}
        self.network = Network()
        self.context = Context(self.network)

        def of_neutron(syncer):
            original = syncer.get_all_from_neutron
            syncer.get_all_from_neutron = lambda context: IterDict(original(context))
            return syncer
        txn = lambda context, name: Transaction()
        self.policies = of_neutron(policy.PolicySyncer(self.network, txn))
        keystone = Options(projects=Options(list=lambda: []))
        self.endpoints = of_neutron(endpoints.WorkloadEndpointSyncer(self.network, txn, self.policies, keystone))
        self.subnets = of_neutron(subnets.SubnetSyncer(self.network, txn))
        self.names = endpoints

    def start(self, _):
        """Writes the settings as provide_felix_config of the driver does: only if something is missing."""
        def merge(kind, change):
            try:
                spec, revision = self.datamodel.get(kind, 'default')
            except self.etcd.KeyNotFound:
                spec, revision = {}, 0
            changed = dict(spec, **change(spec))
            if changed != spec:
                logging.warning('%s rewrite needed for default', kind)
                assert self.datamodel.put(kind, self.datamodel.NOT_NAMESPACED, 'default', changed, mod_revision=revision)

        def with_word(words, word):
            words = words.split(',') if words else []
            return ','.join(words if word in words else words + [word])
        merge('ClusterInformation', lambda spec: {
            'clusterGUID': spec.get('clusterGUID') or 'f' * 32,
            'clusterType': with_word(spec.get('clusterType'), 'openstack'),
            'datastoreReady': spec.get('datastoreReady', True)})
        merge('FelixConfiguration', lambda spec: {
            'endpointReportingEnabled': True, 'interfacePrefix': with_word(spec.get('interfacePrefix'), 'tap')})
        return {}

    def group(self, command):
        ident = command['id']
        self.network.groups[ident] = {'id': ident, 'name': command['name']}
        self.network.rules = [r for r in self.network.rules if r['security_group_id'] != ident]
        for rule in command['rules']:
            full = dict(direction='ingress', ethertype='IPv4', protocol=None, port_range_min=None,
                        port_range_max=None, remote_group_id=None, remote_ip_prefix=None)
            full.update(rule, security_group_id=ident)
            if full['port_range_min'] is None:
                full['port_range_min'] = -1
            self.network.rules.append(full)
        self.policies.write_sgs_to_etcd([ident], self.context)
        return {}

    def subnet(self, command):
        self.network.subnets[command['id']] = {
            'id': command['id'], 'network_id': 'net', 'cidr': command['cidr'], 'gateway_ip': command['gateway'],
            'enable_dhcp': True, 'host_routes': [], 'dns_nameservers': []}
        self.subnets.subnet_created(self.network.subnets[command['id']], self.context)
        return {}

    def port(self, command):
        self.network.ports[command['id']] = {
            'id': command['id'], 'device_id': command['device'], 'binding:host_id': command['host'],
            'device_owner': 'compute:nova', 'mac_address': command['mac'], 'network_id': 'net', 'tenant_id': 'project',
            'fixed_ips': [{'ip_address': ip, 'subnet_id': command['subnet']} for ip in command['ips']],
            'security_groups': command['groups'],
            'allowed_address_pairs': [{'ip_address': pair} for pair in command.get('pairs', [])]}
        self.network.floating += [{'fixed_port_id': command['id'], 'fixed_ip_address': inside, 'floating_ip_address': outside}
                                  for inside, outside in command.get('floating', [])]
        port = self.network.get_port(self.context, command['id'])
        self.endpoints.write_endpoint(port, self.context)
        return {'name': self.names.endpoint_name(port)}

    def delete_port(self, command):
        self.endpoints.delete_endpoint(self.network.ports.pop(command['id']))
        return {}

    def resync(self, _):
        changes = Changes()
        logging.getLogger().addHandler(changes)
        try:
            self.start({})
            for syncer in (self.subnets, self.policies, self.endpoints):
                syncer.resync(self.context)
        finally:
            logging.getLogger().removeHandler(changes)
        return {'changes': changes.found}

    def watch(self, _):
        spawn(self.watcher(self).start)
        return {}

    def status(self, _):
        with self.lock:
            return {'agents': self.agents, 'ports': self.statuses}

    def on_felix_alive(self, felix_hostname, new):
        with self.lock:
            agent = self.agents.setdefault(felix_hostname, {'seen': 0, 'new': 0})
            agent['seen'] += 1
            agent['new'] += int(new)

    def on_port_status_changed(self, hostname, port_id, status_dict, priority='low'):
        with self.lock:
            status = None if status_dict is None else status_dict.get('status')
            self.statuses.setdefault(port_id, []).append({'host': hostname, 'status': status, 'priority': priority})


def main():
    host, port = sys.argv[1].rsplit(':', 1)
    install(host, int(port), sys.argv[2] if len(sys.argv) > 2 else None)
    driver = Driver()
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(driver, command['op'].replace('-', '_'))(command)
        print(json.dumps(answer), flush=True)


main()
